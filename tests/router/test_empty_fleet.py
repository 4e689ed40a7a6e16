"""A fleet that has nobody for a while: requests wait, bounded, and do not storm the first that returns."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from tests.router.scripted import BODY, completion, rig, until

_WAITS = {"no_replica_wait_seconds": 10.0}


async def test_requests_bridge_the_restart_of_the_only_replica() -> None:
    async with rig(1, limits={**_WAITS, "released_per_replica": 3}) as up:
        (replica,) = up.replicas
        port = int(replica.url.rsplit(":", 1)[1])
        await replica.stop()
        await up.ready(0)
        asked = [asyncio.create_task(up.post()) for _ in range(12)]
        await until(lambda: up.router.gateway.held == 12)
        assert (await up.get("/readyz"))[0] == 503
        assert await up.metric("kvring_waiting_requests") == 12
        gate = asyncio.Event()
        most = 0

        async def slow(request: web.Request) -> web.StreamResponse:
            nonlocal most
            most = max(most, replica.running)
            await gate.wait()
            return web.json_response({"choices": [], "usage": {"prompt_tokens": 40}})

        replica.answer = slow
        replica.uid = "again"
        await replica.start(port)
        await until(lambda: replica.running == 3)
        await asyncio.sleep(0.1)
        assert replica.running == 3
        gate.set()
        assert [status for status, _, _ in await asyncio.gather(*asked)] == [200] * 12
        assert most == 3
        assert await up.metric("kvring_wait_seconds_count") == 12
        assert await up.metric("kvring_waiting_requests") == 0


async def test_who_waited_in_vain_is_told_when_to_come_again() -> None:
    async with rig(1, limits={"no_replica_wait_seconds": 0.1, "waiting_requests": 2}) as up:
        await up.replicas[0].stop()
        await up.ready(0)
        answers = await asyncio.gather(*(up.post() for _ in range(5)))
        assert [status for status, _, _ in answers] == [503] * 5
        for _, raw, response in answers:
            assert 1 <= int(response.headers["Retry-After"]) <= 30
            assert json.loads(raw)["error"]["message"]
        assert await up.metric("kvring_shed_total", reason="waiting_requests") == 3
        assert await up.metric("kvring_shed_total", reason="no_replica") == 2


async def test_an_unknown_model_and_a_client_that_leaves_do_not_wait() -> None:
    async with rig(1, limits=_WAITS) as up:
        assert (await up.post({**BODY, "model": "unheard-of"}))[0] == 404
        await up.replicas[0].stop()
        await up.ready(0)
        leaving = asyncio.create_task(up.post())
        await until(lambda: up.router.gateway.held == 1)
        leaving.cancel()
        await until(lambda: up.router.gateway.held == 0)
        assert await up.metric("kvring_waiting_requests") == 0


async def test_who_comes_new_stands_behind_who_waits_for_the_same_model() -> None:
    async with rig(2, limits={**_WAITS, "released_per_replica": 1}) as up:
        gone, other = up.replicas
        gone.models, other.models = ("m",), ("another",)
        members = up.router.fleet.replicas
        await until(lambda: {model for one in members for model in one.models} == {"m", "another"})
        gone.state_status = 503
        await up.ready(1)
        asked = [asyncio.create_task(up.post()) for _ in range(4)]
        await until(lambda: up.router.gateway.held == 4)
        # For a model that nobody waits for, nobody waits.
        assert (await up.post({**BODY, "model": "another"}))[0] == 200
        gate = asyncio.Event()
        most = 0

        async def slow(request: web.Request) -> web.StreamResponse:
            nonlocal most
            most = max(most, gone.running)
            await gate.wait()
            return web.json_response({"choices": [], "usage": {"prompt_tokens": 40}})

        gone.answer = slow
        gone.state_status = 200
        await until(lambda: gone.running == 1)
        asked += [asyncio.create_task(up.post()) for _ in range(4)]
        await until(lambda: up.router.gateway.held == 8)
        assert (await up.post({**BODY, "model": "another"}))[0] == 200
        assert (gone.running, len(gone.requests)) == (1, 1)
        gate.set()
        assert [status for status, _, _ in await asyncio.gather(*asked)] == [200] * 8
        # The last of them goes beside the first that comes when nobody waits any more.
        assert most <= 2


async def test_who_is_refused_a_connection_waits_like_who_comes_later() -> None:
    """Until a probe notices, requests go to a replica that is gone: nothing has run, so they may wait."""
    limits = {**_WAITS, "released_per_replica": 2}
    fleet = {"state_poll_seconds": 30, "idle_poll_seconds": 30}
    async with rig(1, limits=limits, fleet=fleet, observe={"explain": True, "access_log": False}) as up:
        (replica,) = up.replicas
        (member,) = up.router.fleet.replicas
        port = int(replica.url.rsplit(":", 1)[1])
        await replica.stop()
        await up.ready(1)
        asked = [asyncio.create_task(up.post()) for _ in range(6)]
        await until(lambda: len(up.router._room) == 6)
        await up.ready(0)
        most = 0

        async def answer(request: web.Request) -> web.StreamResponse:
            nonlocal most
            most = max(most, replica.running)
            await asyncio.sleep(0.05)
            return web.json_response(completion())

        replica.answer = answer
        await replica.start(port)
        member.health.probe_passed(0.0)
        assert [status for status, _, _ in await asyncio.gather(*asked)] == [200] * 6
        assert most == 2
        assert len(replica.requests) == 6
        assert await up.metric("kvring_requests_total", replica="r0", outcome="ok") == 6
        assert await up.metric("kvring_requests_total") == 6
        assert await up.metric("kvring_wait_seconds_count") == 6
        assert len((await up.get("/debug/decisions"))[1]["decisions"]) == 6


async def test_who_is_refused_a_connection_waits_no_longer_in_all() -> None:
    async with rig(1, limits={"no_replica_wait_seconds": 0.2}) as up:
        await up.replicas[0].stop()
        first, _, response = await up.post()
        assert first == 503
        assert 1 <= int(response.headers["Retry-After"]) <= 30
        assert await up.metric("kvring_shed_total", reason="no_replica") == 1
        assert await up.metric("kvring_model_requests_total") == 1
