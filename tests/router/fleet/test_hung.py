"""Hung, silent and slow replicas on real sockets: out one by one, never all, and back on trial."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from router.fleet.health import Standing
from router.fleet.replica import Replica, State
from tests.router.scripted import Rig, ScriptedReplica, chunk, rig, stream, until

# Short, so that tests are; beyond what a busy machine delays an answer by.
HUNG = {"poll_timeout_seconds": 0.4, "silence_seconds": 0.3}


class _Hanging(ScriptedReplica):
    """Answers nothing at all while it hangs."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.free = asyncio.Event()
        self.free.set()

    async def _state(self, request: web.Request) -> web.Response:
        self.states_asked += not self.free.is_set()
        await self.free.wait()
        return await super()._state(request)

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        await self.free.wait()
        return await super()._infer(request)


@asynccontextmanager
async def _fleet(count: int, **fleet: Any) -> AsyncIterator[tuple[Rig, list[_Hanging], list[Replica]]]:
    replicas = [_Hanging(f"r{index}") for index in range(count)]
    async with AsyncExitStack() as stack:
        for replica in replicas:
            await replica.start()
            stack.push_async_callback(replica.stop)
        listed = [{"name": replica.name, "url": replica.url} for replica in replicas]
        up = await stack.enter_async_context(rig(0, fleet={"replicas": listed, "hung": HUNG, **fleet}))
        await up.ready(count)
        members = [up.router.fleet.by_name(replica.name) for replica in replicas]
        try:
            yield up, replicas, [member for member in members if member is not None]
        finally:
            for replica in replicas:
                replica.free.set()


def _served_by(response: Any) -> str:
    return str(response.headers["x-kvring-replica"])


async def test_two_unanswered_polls_take_it_out_and_one_answered_brings_it_back() -> None:
    async with _fleet(3) as (up, replicas, members):
        home = _served_by((await up.post())[2])
        place = next(index for index, replica in enumerate(replicas) if replica.name == home)
        hung, member = replicas[place], members[place]
        told: list[str] = []
        member.stall.watchers.add(lambda: told.append(home))
        before = hung.states_asked
        hung.free.clear()
        await until(lambda: not member.usable)
        # The one on its way as it began to hang, and two more at most, were it answered in part.
        assert 2 <= hung.states_asked - before <= 3
        assert told == [home]
        assert member.health.standing is Standing.SUSPECT
        assert [one.usable for one in members].count(True) == 2
        # Affinity has another home now, for every request, at the first attempt.
        served = len(hung.requests)
        for _ in range(10):
            status, _, response = await up.post()
            assert (status, _served_by(response) != home) == (200, True)
        assert len(hung.requests) == served
        assert await up.metric("kvring_failovers_total") == 0
        hung.free.set()
        await until(lambda: member.usable)
        assert _served_by((await up.post())[2]) == home


async def test_where_all_hang_requests_are_sent_all_the_same() -> None:
    async with _fleet(2) as (up, replicas, members):
        for replica in replicas:
            replica.free.clear()
        await until(lambda: not any(member.usable for member in members))
        assert up.router.fleet.routable_count == 2
        asked = asyncio.create_task(up.post())
        await until(lambda: sum(member.load.in_flight for member in members) == 1)
        for replica in replicas:
            replica.free.set()
        assert (await asked)[0] == 200


async def test_a_models_only_replica_is_its_last_resort_though_others_serve_other_models() -> None:
    async with _fleet(2) as (up, replicas, members):
        replicas[0].models = ("m", "adapter")
        fleet = up.router.fleet
        await until(lambda: "adapter" in members[0].models)
        replicas[0].free.clear()
        await until(lambda: not members[0].usable)
        assert tuple(fleet.view("m", 0.0).names) == ("r1",)
        assert tuple(fleet.view("adapter", 0.0).names) == ("r0",)
        assert fleet.models() == ["adapter", "m"]
        assert fleet.routable_count == 1


async def test_one_that_talks_is_busy_whatever_its_polls_do() -> None:
    async with _fleet(1) as (up, (replica,), (member,)):
        replica.free.clear()
        before = replica.states_asked
        while replica.states_asked - before < 4:
            member.health.heard(up.router.fleet._clock())
            await asyncio.sleep(0.01)
        assert member.usable
        await until(lambda: not member.usable)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429, 503])
async def test_clients_mistakes_and_back_pressure_count_against_nobody(status: int) -> None:
    async with rig(1) as up:

        async def refuse(request: web.Request) -> web.StreamResponse:
            return web.json_response({"error": {}}, status=status)

        up.replicas[0].answer = refuse
        (member,) = up.router.fleet.replicas
        for _ in range(20):
            assert (await up.post())[0] == status
        assert member.usable
        up.replicas[0].answer = None
        assert (await up.post())[0] == 200


async def test_half_open_a_clients_mistake_decides_nothing() -> None:
    async with rig(1) as up:
        answers = 500

        async def answer(request: web.Request) -> web.StreamResponse:
            return web.json_response({"choices": []}, status=answers)

        up.replicas[0].answer = answer
        (member,) = up.router.fleet.replicas
        for _ in range(2):
            await up.post()
        assert member.stands(0.0) is State.SUSPECT
        await until(lambda: member.usable)
        clock = up.router.fleet._clock
        assert (member.health.on_trial, member.stands(clock())) == (True, State.WARMING)
        answers = 400
        for _ in range(3):
            await up.post()
        assert (member.health.on_trial, member.usable) == (True, True)
        answers = 500
        await up.post()
        assert member.stands(clock()) is State.SUSPECT
        await until(lambda: member.usable)
        answers = 200
        await up.post()
        await until(lambda: not member.health.on_trial)
        assert member.stands(clock()) is State.READY


async def test_on_trial_it_gets_one_request_until_that_is_served() -> None:
    async with rig(3) as up:
        fleet = up.router.fleet
        member = fleet.by_name("r1")
        assert member is not None
        member.health.slow(fleet._clock())
        assert fleet.view("m", 0.0).names == ("r0", "r2")
        await until(lambda: member.usable)
        now = fleet._clock()
        assert len(fleet.view("m", now).names) == 3
        lease = member.load.open(0.1, now)
        assert tuple(fleet.view("m", now).names) == ("r0", "r2")
        member.load.close(lease)
        member.health.answer_succeeded()
        for _ in range(5):
            member.load.open(0.1, now)
        assert len(fleet.view("m", now).names) == 3


async def test_silence_beyond_what_was_announced_takes_it_out_though_it_answers_polls() -> None:
    async with _fleet(2) as (up, _, members):
        member, clock = members[0], up.router.fleet._clock
        told: list[str] = []
        member.stall.watchers.add(lambda: told.append("r0"))
        # A long prefill is explained by its length, however often it is polled meanwhile.
        member.stall.sent("long", 0.0, 100.0, clock(), streamed=True)
        asked = member.load.report
        await until(lambda: member.load.report is not asked)
        await asyncio.sleep(0.5)
        assert member.usable
        member.stall.sent("short", 0.0, 0.01, clock(), streamed=True)
        await until(lambda: not member.usable)
        assert told == ["r0"]
        await until(lambda: "announced" in member.failing)
        assert members[1].usable
        # Half open after a pause, by a poll.
        await until(lambda: member.usable)
        assert member.health.on_trial


async def test_one_that_became_slow_is_out_and_the_fleet_never() -> None:
    async with rig(3, fleet={"outliers": {"least_seconds": 0.1}}) as up:
        fleet = up.router.fleet
        members = [fleet.by_name(f"r{index}") for index in range(3)]

        def serve(times: int, *slow: int) -> None:
            for _ in range(times):
                for index, member in enumerate(members):
                    assert member is not None
                    now = fleet._clock()
                    member.stall.sent("x", 0.0, 0.1, now, streamed=True)
                    member.stall.began("x", now + (2.0 if index in slow else 0.1))

        serve(30)
        serve(10, 1)
        assert [member.usable for member in members if member] == [True, False, True]
        serve(30, 0, 1, 2)
        assert [member.usable for member in members if member] == [True, False, True]
        serve(30)
        await until(lambda: all(member.usable for member in members if member))
        assert members[1] is not None
        assert members[1].health.on_trial
        # The trial fails.
        serve(1, 1)
        assert not members[1].usable


async def test_an_engine_that_computes_where_it_answers_is_waited_for() -> None:
    """Another engine than ours: its /health waits while a prompt is computed."""
    free = asyncio.Event()
    free.set()
    asked = 0

    async def get(request: web.Request) -> web.Response:
        nonlocal asked
        asked += not free.is_set()
        await free.wait()
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m"}]})
        return web.json_response({}, status=200 if request.path == "/health" else 404)

    application = web.Application()
    application.router.add_get("/{rest:.*}", get)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    listed = [{"name": "e", "url": url}]
    try:
        async with rig(0, fleet={"replicas": listed, "engine": "plain", "hung": HUNG}) as up:
            await up.ready(1)
            (member,) = up.router.fleet.replicas
            member.stall.sent("long", 0.0, 100.0, up.router.fleet._clock(), streamed=True)
            free.clear()
            await until(lambda: asked >= 4)
            assert member.usable
            # It is over, and there is no explanation left.
            member.stall.ended("long")
            before = asked
            await until(lambda: not member.usable)
            assert asked - before <= 4
            free.set()
            await until(lambda: member.usable)
    finally:
        free.set()
        await runner.cleanup()


async def test_a_stream_that_talks_keeps_its_replica_in() -> None:
    async with _fleet(1) as (up, (replica,), (member,)):
        going = True

        async def talk(request: web.Request) -> web.StreamResponse:
            pieces = [chunk("word ")] * 150
            return await stream(request, [*pieces, chunk(None, "stop"), b"data: [DONE]\n\n"], 0.01)

        replica.answer = talk
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "go on"}]}
        answer = asyncio.create_task(up.post(body))
        await until(lambda: replica.running == 1)
        await until(lambda: member.health.heard_at > 0)
        replica.free.clear()
        before = replica.states_asked
        while not answer.done():
            going = going and member.usable
            await asyncio.sleep(0.02)
        assert going
        assert (await answer)[0] == 200
        assert replica.states_asked - before >= 2
