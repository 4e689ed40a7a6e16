"""What goes wrong around a fleet: sources that fail, replicas that die, twins, floods of words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import pytest
from aiohttp import web

from router.fleet.members import Member
from router.fleet.replica import State
from tests.router.fleet.listed import Listed
from tests.router.scripted import ScriptedReplica, rig, until


class _Failing(Listed):
    """Raises what no source should, once it has told its members."""

    def __init__(self, *listed: Member) -> None:
        super().__init__(*listed)
        self.begun = 0

    async def watch(self) -> AsyncIterator[Sequence[Member]]:
        self.begun += 1
        async for members in super().watch():
            yield members
            if self.begun == 1:
                raise RuntimeError("a fault of ours")


async def test_a_source_that_fails_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.fleet.fleet._BEGIN_ANEW_SECONDS", 0.3)
    replica = ScriptedReplica("r")
    await replica.start()
    source = _Failing(Member(replica.url))
    monkeypatch.setattr("router.gateway.core.member_sources", lambda *_: [source])
    async with rig(0) as up:
        await up.ready(1)
        assert await up.metric("kvring_discovery_up", source="script") == 0
        assert (await up.post())[0] == 200
        await until(lambda: source.begun == 2)
        source.listed = []
        await up.ready(0)
        assert await up.metric("kvring_discovery_up", source="script") == 1
    await replica.stop()


class _Engine:
    """A plain engine that can be stopped and started at one address, and counts who asks."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        application = web.Application()
        application.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked[request.path] = self.asked.get(request.path, 0) + 1
        if request.path == "/health":
            return web.Response()
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "owned_by": "vllm"}]})
        if request.path == "/metrics":
            page = (
                'vllm:num_requests_running{model_name="m"} 0\nvllm:num_requests_waiting{model_name="m"} 0\n'
            )
            return web.Response(text=page)
        return web.json_response({}, status=404)


async def test_an_engine_that_dies_is_down_and_rests_there(caplog: pytest.LogCaptureFixture) -> None:
    engine = _Engine()
    await engine.start()
    async with rig(0, fleet={"replicas": [{"name": "e", "url": engine.url}]}) as up:
        await up.ready(1)
        (member,) = up.router.fleet.replicas
        assert member.engine == "vllm"
        epoch = member.epoch
        changes = 0

        def changed() -> None:
            nonlocal changes
            changes += 1

        up.router.fleet.on_change(changed)
        with caplog.at_level(logging.WARNING, "kvring.fleet"):
            await engine.stop()
            await until(lambda: member.stands(0.0) is State.DOWN)
            before = changes
            await asyncio.sleep(0.5)
        assert member.stands(0.0) is State.DOWN
        assert changes == before
        # One reason is told once, however often it is asked.
        assert len([line for line in caplog.messages if "probe of replica" in line]) <= 2
        assert await up.metric("kvring_fleet_replicas", state="down") == 1
        # It tells no process: whoever answers now is credited nothing.
        await engine.start(int(engine.url.rsplit(":", 1)[1]))
        await up.ready(1)
        assert member.epoch != epoch
    await engine.stop()


async def test_a_known_engine_is_asked_for_little() -> None:
    engine = _Engine()
    await engine.start()
    async with rig(0, fleet={"replicas": [{"name": "e", "url": engine.url}]}) as up:
        await up.ready(1)
        before = dict(engine.asked)
        await until(lambda: engine.asked["/metrics"] >= before["/metrics"] + 20)
        asked = {path: count - before.get(path, 0) for path, count in engine.asked.items()}
        assert asked["/state"] == 0
        assert asked["/v1/models"] == 0
        assert asked["/health"] <= 3
    await engine.stop()


async def test_the_other_address_takes_over_when_the_used_one_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = ScriptedReplica("dual")
    await replica.start()
    again = ScriptedReplica("dual")
    await again.start()
    monkeypatch.setattr(
        "router.gateway.core.member_sources", lambda *_: [Listed(Member(replica.url), Member(again.url))]
    )
    async with rig(0) as up:
        await up.ready(1)
        await until(lambda: all(one.state for one in up.router.fleet.replicas))
        used = next(one for one in up.router.fleet.replicas if one.usable)
        await (replica if used.url == replica.url else again).stop()
        await until(lambda: any(one.usable and one is not used for one in up.router.fleet.replicas))
        assert up.router.fleet.by_name("dual") is not used
        assert (await up.post())[0] == 200
    await again.stop()
    await replica.stop()


async def test_one_that_restarts_between_two_polls_warms() -> None:
    async with rig(2, fleet={"warming_seconds": 1000}) as up:
        scripted = up.replica("r0")
        member = up.router.fleet.by_name("r0")
        assert member is not None
        before = member.epoch
        scripted.uid, scripted.serving_seconds = "r0-2", 0.0
        await until(lambda: member.usable and member.epoch != before)
        lease = member.load.open(0.1, 0.0)
        # It has its one request, and is left alone.
        assert up.router.fleet.view("m", up.router.fleet._clock()).names == ("r1",)
        member.load.close(lease)


async def test_changed_limits_hold_for_members_there_are() -> None:
    async with rig(1) as up:
        up.router.fleet.options = up.router.fleet.options.model_copy(update={"failures_to_suspect": 50})
        (member,) = up.router.fleet.replicas
        for _ in range(49):
            member.health.answer_failed(0.0)
        assert member.usable


async def test_one_that_drains_is_no_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = ScriptedReplica("r")
    await replica.start()
    source = Listed(Member(replica.url, "r"))
    monkeypatch.setattr("router.gateway.core.member_sources", lambda *_: [source])
    async with rig(0) as up:
        await up.ready(1)
        replica.state_status = 500
        await until(lambda: not up.router.fleet.replicas[0].usable)
        assert up.router.fleet.routable_count == 1
        source.listed = [Member(replica.url, "r", draining=True)]
        await until(lambda: up.router.fleet.routable_count == 0)
    await replica.stop()


async def test_who_is_absent_for_long_is_looked_for_less_often(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kvring.fleet"):
        async with rig(0, fleet={"replicas": [{"name": "gone", "url": "http://127.0.0.1:9"}]}) as up:
            await until(lambda: up.router.fleet.replicas[0].failing != "")
            poller = next(iter(up.router.fleet._pollers.values()))
            assert poller.due_at(0.0) == pytest.approx(0.05)
            await until(lambda: poller._unreached > 20)
            assert poller.due_at(0.0) > 0.05
            poller._unreached = 1000
            assert poller.due_at(0.0) == 5.0
            status, body = await up.get("/readyz")
            assert (status, body["reason"]) == (
                503,
                "none of 1 replicas is usable, most of all since: nothing listens there",
            )
    # Also of one that never was ready, and once.
    assert len([line for line in caplog.messages if "probe of replica gone failed" in line]) == 1


async def test_a_fleet_without_replicas_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kvring.fleet"):
        async with rig(0):
            pass
    assert "there are no replicas by static" in caplog.messages
