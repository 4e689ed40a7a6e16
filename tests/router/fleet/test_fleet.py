"""The fleet: members come and go by the difference, identities change, credit does not outlive them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from router.chain.digest import Digest
from router.config import RouterConfig
from router.fleet.members import Member
from router.settings import SettingsError
from tests.router.fleet.listed import Listed
from tests.router.scripted import BODY, ScriptedReplica, rig, until


async def test_a_replica_that_is_not_ready_gets_nothing() -> None:
    replica = ScriptedReplica("late")
    replica.state_status = 503
    await replica.start()
    async with rig(0, fleet={"replicas": [{"name": "late", "url": replica.url}]}) as up:
        await asyncio.sleep(0.2)
        assert (await up.post())[0] == 503
        assert not replica.bodies
        replica.state_status = 200
        await up.ready(1)
        assert (await up.post())[0] == 200
        replica.draining = True
        await up.ready(0)
        assert (await up.post())[0] == 503
    await replica.stop()


async def test_when_all_look_bad_all_are_tried() -> None:
    async with rig(2) as up:
        for replica in up.replicas:
            replica.state_status = 500
        await up.ready(0)
        assert (await up.post())[0] == 200


async def test_a_new_process_at_an_old_address_has_no_credit() -> None:
    async with rig(1) as up:
        (member,) = up.router.fleet.replicas
        before = member.epoch
        member.digest = Digest.of([b"x" * 32], "i", before)
        up.replicas[0].uid = "another"
        await until(lambda: member.epoch != before and member.digest is None)
        assert (await up.post())[0] == 200


async def test_who_serves_is_worked_out_only_when_it_changes() -> None:
    async with rig(2) as up:
        fleet = up.router.fleet
        # Usable a moment before the poll that found it so is over.
        await asyncio.sleep(0.1)
        states = sum(replica.states_asked for replica in up.replicas)
        before = fleet.view("m", 0.0).roster
        await until(lambda: sum(replica.states_asked for replica in up.replicas) >= states + 6)
        assert fleet.view("m", 1.0).roster is before
        up.replicas[0].draining = True
        await until(lambda: len(fleet.view("m", 2.0)) == 1)
        # The home of a key does not depend on who is there to be asked.
        assert fleet.view("m", 2.0).ring is before.ring


async def test_each_model_has_a_ring_of_its_own_members() -> None:
    async with rig(4) as up:
        for replica in up.replicas[:2]:
            replica.models = ("m2",)
            replica.uid = f"{replica.name} anew"
        fleet = up.router.fleet
        await until(lambda: len(fleet.view("m2", 0.0)) == 2 and len(fleet.view("m", 0.0)) == 2)
        for model in ("m", "m2"):
            view = fleet.view(model, 0.0)
            assert sorted(view.ring.names) == sorted(view.names)
            assert view.members == 2


async def test_an_address_that_serves_another_model_is_not_asked_for_the_old_one() -> None:
    async with rig(1) as up:
        up.replicas[0].models = ("m2",)
        up.replicas[0].uid = "another"
        await until(lambda: up.router.fleet.models() == ["m2"])
        assert (await up.post())[0] == 404
        assert not up.replicas[0].bodies


async def test_an_engine_without_state_is_known_by_its_health_and_models() -> None:
    async def health(request: web.Request) -> web.Response:
        return web.Response()

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    gate = asyncio.Event()

    async def chat(request: web.Request) -> web.StreamResponse:
        if not (await request.json()).get("stream"):
            return web.json_response({"choices": [], "usage": {"prompt_tokens": 3}})
        # As engines do: the headers on admission, the first byte after the prefill.
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await gate.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    application = web.Application()
    application.router.add_get("/health", health)
    application.router.add_get("/v1/models", models)
    application.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with rig(0, fleet={"replicas": [{"name": "plain", "url": url}]}) as up:
        await up.ready(1)
        status, _, response = await up.post()
        assert (status, response.headers["x-kvring-replica"]) == (200, "plain")
        assert await up.metric("kvring_hit_unreported_total", replica="plain") == 1
        (member,) = up.router.fleet.replicas
        streaming = asyncio.create_task(up.post({**BODY, "stream": True}))
        await until(lambda: member.load.in_flight == 1)
        await asyncio.sleep(0.05)
        # Its own report would tell; without one, what was sent counts until the first byte.
        assert member.load.view(0.0).own_work_seconds > 0
        gate.set()
        assert (await streaming)[0] == 200
        assert member.load.view(0.0).own_work_seconds == 0
    await runner.cleanup()


async def test_members_follow_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = [ScriptedReplica(f"pod-{index}") for index in range(3)]
    for replica in replicas:
        await replica.start()
    source = Listed()
    monkeypatch.setattr("router.gateway.core.member_sources", lambda *_: [source])
    async with rig(0) as up:
        source.listed = [Member(replica.url) for replica in replicas]
        await up.ready(3)
        # Nobody named them: they said their names themselves, and no address shows.
        assert {replica.name for replica in up.router.fleet.replicas} == {"pod-0", "pod-1", "pod-2"}
        assert await up.metric("kvring_replica_usable") == 3
        source.listed = None
        await asyncio.sleep(0.15)
        assert len(up.router.fleet.replicas) == 3
        source.listed = [Member(replicas[0].url)]
        await up.ready(1)
        assert await up.metric("kvring_replica_usable") == 1
        assert "pod-1" not in (await up.get("/metrics"))[1].split("kvring_replica_usable")[1]
        for number in range(20):
            body = {**BODY, "messages": [{"role": "user", "content": f"{number} " * 50}]}
            assert (await up.post(body))[2].headers["x-kvring-replica"] == "pod-0"
        source.listed = []
        await up.ready(0)
        assert (await up.post())[0] == 503
    for replica in replicas:
        await replica.stop()


async def test_two_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = [ScriptedReplica("twin"), ScriptedReplica("twin")]
    replicas[1].uid = "another"
    for replica in replicas:
        await replica.start()
    source = Listed()
    monkeypatch.setattr("router.gateway.core.member_sources", lambda *_: [source])
    async with rig(0) as up:
        source.listed = [Member(replica.url) for replica in replicas]
        await up.ready(2)
        for number in range(30):
            assert (await up.post({**BODY, "messages": [{"role": "user", "content": f"{number} " * 50}]}))[
                0
            ] == 200
        assert all(replica.bodies for replica in replicas)
        # A pod that has moved: once its old address is gone, the name is its own again.
        source.listed = [Member(replicas[1].url)]
        await until(lambda: [replica.name for replica in up.router.fleet.replicas] == ["twin"])
        assert (await up.post())[2].headers["x-kvring-replica"] == "twin"
    for replica in replicas:
        await replica.stop()


async def test_a_request_that_ends_after_its_replica_left_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = ScriptedReplica("gone")
    await replica.start()
    gate = asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        await gate.wait()
        return web.json_response({"choices": []})

    replica.answer = wait
    source = Listed()
    monkeypatch.setattr("router.gateway.core.member_sources", lambda *_: [source])
    async with rig(0) as up:
        source.listed = [Member(replica.url)]
        await up.ready(1)
        running = asyncio.create_task(up.post())
        await until(lambda: replica.running == 1)
        source.listed = []
        await up.ready(0)
        gate.set()
        assert (await running)[0] == 200
        assert not up.router.fleet.replicas
        assert await up.metric("kvring_replica_in_flight_requests") == 0
    await replica.stop()


async def test_dns_finds_a_real_replica() -> None:
    replica = ScriptedReplica("by-name")
    await replica.start()
    port = int(replica.url.rsplit(":", 1)[1])
    async with rig(0, fleet={"dns": {"host": "localhost", "port": port, "refresh_seconds": 0.1}}) as up:
        await up.ready(1)
        _, _, response = await up.post()
        assert response.headers["x-kvring-replica"] == "by-name"
    await replica.stop()


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        (
            {"fleet": {"replicas": [{"name": "a", "url": "http://x"}, {"name": "a", "url": "http://y"}]}},
            "fleet",
        ),
        ({"fleet": {"replicas": [{"name": "a b", "url": "http://x"}]}}, "fleet.replicas.0.name"),
        ({"fleet": {"replicas": [{"name": "a", "url": "ftp://x"}]}}, "fleet.replicas.0.url"),
        ({"listen": {"port": 70_000}}, "listen.port"),
        ({"listenn": {}}, "listenn"),
        ({"chain": {"algorithm": "md5"}}, "chain.algorithm"),
        ({"picker": {"port": 9002, "health_port": 9002}}, "picker.*must differ"),
    ],
)
def test_unfit_options_are_refused_by_name(flags: dict[str, Any], where: str) -> None:
    with pytest.raises(SettingsError, match=where):
        RouterConfig.load(flags=flags)
