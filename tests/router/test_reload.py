"""Options that change while a router runs: taken up for the next request, or refused while the old go on."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from loadgen.children import free_ports, start_child, stop_children, wait_until_ready
from router.config import RouterConfig
from router.policies import PolicyError
from router.reload import Reloader
from router.settings import SettingsError
from tests.router.scripted import BODY, Rig, ScriptedReplica, rig, until


def _changed(up: Rig, **sections: object) -> RouterConfig:
    return RouterConfig.model_construct(
        **{name: getattr(up.router.gateway.serving.config, name) for name in RouterConfig.model_fields}
        | {name: getattr(RouterConfig.load(flags={name: value}), name) for name, value in sections.items()}
    )


async def test_the_next_request_is_served_by_the_new_options() -> None:
    async with rig(2) as up:
        assert (await up.post())[2].headers["x-kvring-policy"] == "affinity"
        before = up.router.gateway.serving
        up.router.reload(_changed(up, policy={"name": "round_robin"}, observe={"explain": True}))
        served = [(await up.post())[2].headers["x-kvring-replica"] for _ in range(4)]
        assert served[0] != served[1]
        assert served[:2] == served[2:]
        assert (await up.get("/debug/explain/nobody"))[1]["error"]["code"] == "request_not_found"
        assert await up.metric("kvring_info", policy="round_robin") == 1
        assert await up.metric("kvring_info", policy="affinity") == 0
        # What is not named anew keeps what it has learned.
        acting = up.router.gateway.serving
        up.router.reload(_changed(up, limits={"attempts": 2}))
        assert up.router.gateway.serving.policy is acting.policy
        assert acting.policy is not before.policy


async def test_what_may_be_retried_is_no_more_for_other_options() -> None:
    async with rig(1) as up:
        before = up.router.gateway.serving.budget
        up.router.reload(_changed(up, limits={"attempts": 2}))
        assert up.router.gateway.serving.budget is before
        up.router.reload(_changed(up, limits={"retry_burst": 5}))
        assert up.router.gateway.serving.budget is not before


async def test_a_request_keeps_the_parts_it_began_with() -> None:
    gate = asyncio.Event()

    async def held(request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return web.json_response({"choices": [], "usage": {"prompt_tokens": 9}})

    async with rig(1) as up:
        up.replicas[0].answer = held
        running = asyncio.create_task(up.post())
        await until(lambda: up.replicas[0].running == 1)
        up.router.reload(_changed(up, policy={"name": "least_requests"}))
        gate.set()
        status, _, response = await running
        assert (status, response.headers["x-kvring-policy"]) == (200, "affinity")


async def test_a_shadow_that_is_taken_out_leaves_nothing_behind() -> None:
    gate = asyncio.Event()

    async def held(request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return web.json_response({"choices": [], "usage": {"prompt_tokens": 9}})

    def shadow(name: str) -> dict[str, object]:
        return {"name": name, "policy": "round_robin", "sample_share": 1}

    observe = {"access_log": False, "shadow": [shadow("goes"), shadow("stays")]}
    async with rig(1, observe=observe) as up:
        assert (await up.post())[0] == 200
        for name in ("goes", "stays"):
            assert await up.metric("kvring_shadow_requests_total", shadow=name) == 1
        up.replicas[0].answer = held
        running = asyncio.create_task(up.post())
        await until(lambda: up.replicas[0].running == 1)
        up.router.reload(_changed(up, observe={"access_log": False, "shadow": [shadow("stays")]}))
        gate.set()
        assert (await running)[0] == 200
        _, text = await up.get("/metrics")
        assert 'kvring_shadow_busiest_share{course="shadow",shadow="stays"}' in text
        assert "goes" not in text


async def test_static_members_come_and_go() -> None:
    newcomer = ScriptedReplica("new")
    await newcomer.start()
    async with rig(1) as up:
        config = up.router.gateway.serving.config
        listed = [
            {"name": "new", "url": newcomer.url},
            *({"name": one.name, "url": one.url} for one in config.fleet.replicas),
        ]
        fleet = {"replicas": listed, "state_poll_seconds": 0.03}
        up.router.reload(_changed(up, fleet=fleet))
        await up.ready(2)
        up.router.reload(_changed(up, fleet={**fleet, "replicas": listed[:1]}))
        await up.ready(1)
        assert (await up.post())[2].headers["x-kvring-replica"] == "new"
    await newcomer.stop()


@pytest.mark.parametrize(
    ("sections", "error"),
    [
        ({"listen": {"port": 1}}, "listen"),
        ({"chain": {"seed": "another"}}, "chain"),
        ({"fleet": {"dns": {"host": "elsewhere"}}}, "fleet.dns"),
        ({"policy": {"name": "nonsense"}}, "there is no policy"),
        ({"policy": {"name": "affinity", "options": {"copies_slack": -1}}}, "copies_slack"),
    ],
)
async def test_what_cannot_be_taken_up_changes_nothing(sections: dict[str, object], error: str) -> None:
    async with rig(1) as up:
        before = up.router.gateway.serving
        with pytest.raises((SettingsError, PolicyError), match=error):
            up.router.reload(_changed(up, **sections))
        assert up.router.gateway.serving is before
        assert (await up.post())[0] == 200


@pytest.mark.parametrize("fault", [PolicyError("bad"), KeyError("worse"), RecursionError()])
async def test_no_fault_ends_who_reloads(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async with rig(1) as up:
        serving = up.router.gateway.serving
        taken: list[RouterConfig] = []
        faults = [fault]

        def take(config: RouterConfig) -> None:
            if faults:
                raise faults.pop()
            taken.append(config)

        asked = asyncio.Event()
        reloader = Reloader(
            lambda: serving.config, take, None, lambda: serving.config, up.router.metrics, asked
        )
        running = asyncio.create_task(reloader.run())
        asked.set()
        await until(lambda: not faults)
        assert await up.metric("kvring_config_reloads_total", result="refused") == 1
        assert sum("the old go on" in line for line in caplog.messages) == 1
        asked.set()
        await until(lambda: bool(taken))
        assert await up.metric("kvring_config_current") == 1
        running.cancel()


async def test_a_file_and_a_signal(tmp_path: Path) -> None:
    """A real process: a changed file is found, a broken one refused, and SIGHUP loads at once."""
    replica = ScriptedReplica("r0")
    await replica.start()
    port, control = free_ports(2)
    file = tmp_path / "kvring.toml"

    def write(policy: str, reload_seconds: float = 0.1) -> None:
        # As a mounted ConfigMap changes: another file under the same name.
        fresh = tmp_path / "fresh.toml"
        fresh.write_text(
            f"reload_seconds = {reload_seconds}\n[listen]\nport = {port}\n[control]\nport = {control}\n"
            f'[policy]\nname = "{policy}"\n[[fleet.replicas]]\nname = "r0"\nurl = "{replica.url}"\n'
        )
        fresh.replace(file)

    write("affinity")
    child = start_child("router", ["router", "--config", str(file)], tmp_path, {})
    try:
        await wait_until_ready(child, f"http://127.0.0.1:{control}/readyz", 30)
        async with aiohttp.ClientSession() as session:

            async def policy() -> str:
                url = f"http://127.0.0.1:{port}/v1/chat/completions"
                async with session.post(url, json=BODY) as response:
                    assert response.status == 200
                    return response.headers["x-kvring-policy"]

            async def metric(line: str) -> bool:
                async with session.get(f"http://127.0.0.1:{control}/metrics") as response:
                    return line in await response.text()

            async def becomes(name: str) -> None:
                async with asyncio.timeout(10):
                    while await policy() != name:  # noqa: ASYNC110 - another process
                        await asyncio.sleep(0.05)

            assert await policy() == "affinity"
            # Control has a port of its own: the API's tells nothing but whether it is ready.
            async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
                assert response.status == 404
                assert json.loads(await response.read())["error"]["message"]
            async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
                assert response.status == 200
            write("round_robin")
            await becomes("round_robin")
            write("nonsense")
            async with asyncio.timeout(10):
                while not await metric('kvring_config_reloads_total{result="refused"} 1.0'):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert await policy() == "round_robin"
            assert await metric("kvring_config_current 0.0")
            write("least_work", reload_seconds=3600)
            await becomes("least_work")
            write("power_of_two", reload_seconds=3600)
            await asyncio.sleep(0.3)
            assert await policy() == "least_work"
            child.process.send_signal(signal.SIGHUP)
            await becomes("power_of_two")
            assert await metric("kvring_config_current 1.0")
    finally:
        await stop_children([child], 5.0)
        await replica.stop()
