"""Admission: full replicas are passed by; where all are, who comes is refused at once."""

from __future__ import annotations

import asyncio
import json
import resource
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router.fleet.health import Standing
from tests.integration.fleets import live_fleet
from tests.integration.plain_fleet import PlainFleet, plain_fleet
from tests.redis_server import redis_server
from tests.router.engines.scripted_engines import VLLM, served, vllm_page
from tests.router.gateway.relayed import answering, home_of
from tests.router.scripted import BODY, Rig, completion, rig, until


class _Gate:
    """What lets answers go."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        await self.open.wait()
        return web.json_response(completion())


@asynccontextmanager
async def held(count: int, **changes: Any) -> AsyncIterator[tuple[Rig, _Gate]]:
    """A rig whose replicas answer once they are let."""
    async with rig(count, **changes) as up:
        gate = _Gate()
        try:
            yield up, gate
        finally:
            gate.open.set()


def _hold(up: Rig, gate: _Gate) -> None:
    for replica in up.replicas:
        replica.answer = gate.answer


def _in_flight(up: Rig) -> list[int]:
    return [replica.running for replica in up.replicas]


async def test_of_two_hundred_at_once_as_many_are_taken_as_there_is_room_for() -> None:
    """8 in service and 8 queued on each of two: 32. The others are refused before any of these is served."""
    async with held(2, limits={"replica_requests": 16}) as (up, gate):
        _hold(up, gate)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            up.session, mine = session, up.session
            sent = [asyncio.create_task(up.post(_chat(number))) for number in range(200)]
            try:
                await until(lambda: sum(task.done() for task in sent) == 168)
                await until(lambda: _in_flight(up) == [16, 16])
                gate.open.set()
                answers = await asyncio.gather(*sent)
            finally:
                up.session = mine
        assert Counter(status for status, _, _ in answers) == {200: 32, 429: 168}
        for status, raw, response in answers:
            if status == 429:
                error = json.loads(raw)["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
                assert 1 <= int(response.headers["Retry-After"]) <= 30
                assert "x-should-retry" not in response.headers
                assert "x-kvring-replica" not in response.headers
        assert sum(len(replica.bodies) for replica in up.replicas) == 32
        assert await up.metric("kvring_shed_total", reason="replica_requests") == 168
        assert await up.metric("kvring_refusals_total", status="429") == 168
        # In KiB; what is refused is not kept.
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
        # Room again.
        await _all_known_idle(up)
        assert (await up.post())[0] == 200


async def _all_known_idle(up: Rig) -> None:
    """Wait until no report counts any more that was under way while the last answers ended."""
    await until(lambda: not any(one.load.requests for one in up.router.fleet.replicas))


def _chat(number: int) -> dict[str, Any]:
    return {**BODY, "messages": [{"role": "user", "content": f"{number}: tell me about the sea. " * 8}]}


async def test_a_full_home_is_passed_by_for_the_next_of_the_ranking() -> None:
    async with held(3, limits={"replica_requests": 1}, policy={"name": "session_ring"}) as (up, gate):
        home = await home_of(up)
        _hold(up, gate)
        sent = []
        for number in range(3):
            sent.append(asyncio.create_task(up.post()))
            await until(lambda count=number + 1: sum(_in_flight(up)) == count)  # type: ignore[misc]
            if number == 0:
                assert up.replica(home).running == 1
        # Each of the same prompt went on, past those that were full: nothing was tried that had no room.
        assert _in_flight(up) == [1, 1, 1]
        assert await up.metric("kvring_failovers_total") == 0
        assert (await up.post())[0] == 429
        gate.open.set()
        assert {status for status, _, _ in await asyncio.gather(*sent)} == {200}
        await _all_known_idle(up)
        assert await home_of(up) == home


async def test_more_replicas_than_attempts_are_passed_by() -> None:
    async with held(5, limits={"replica_requests": 1, "attempts": 1}) as (up, gate):
        _hold(up, gate)
        sent = [asyncio.create_task(up.post()) for _ in range(5)]
        await until(lambda: _in_flight(up) == [1] * 5)
        gate.open.set()
        assert {status for status, _, _ in await asyncio.gather(*sent)} == {200}


@pytest.mark.parametrize("policy", ["affinity", "round_robin", "least_requests"])
async def test_a_predicted_wait_beyond_the_limit_is_refused_and_passes(policy: str) -> None:
    limits = {"longest_wait_seconds": 2}
    async with rig(2, limits=limits, policy={"name": policy}, fleet={"state_poll_seconds": 0.05}) as up:
        for replica in up.replicas:
            replica.work_seconds = 40.0
        await until(lambda: all(one.load.work_seconds == 40.0 for one in up.router.fleet.replicas))
        status, _, response = await up.post()
        assert status == 429
        # The queue takes 40 s: half of it, more or less.
        assert 10 <= int(response.headers["Retry-After"]) <= 30
        assert await up.metric("kvring_shed_total", reason="longest_wait") == 1
        up.replicas[0].work_seconds = 0.5
        await until(lambda: min(one.load.work_seconds for one in up.router.fleet.replicas) == 0.5)
        status, _, response = await up.post()
        assert (status, response.headers["x-kvring-replica"]) == (200, "r0")


async def test_others_are_spilled_to_only_where_there_is_much_room() -> None:
    limits = {"longest_wait_seconds": 20}
    async with rig(2, limits=limits, policy={"name": "session_ring"}) as up:
        home = await home_of(up)
        other = next(replica for replica in up.replicas if replica.name != home)

        async def told(at_home: float, elsewhere: float) -> None:
            up.replica(home).work_seconds, other.work_seconds = at_home, elsewhere
            loads = {one.name: one.load for one in up.router.fleet.replicas}
            await until(
                lambda: (loads[home].work_seconds, loads[other.name].work_seconds) == (at_home, elsewhere)
            )

        await told(15.0, 0.0)
        assert await home_of(up) == home
        await told(40.0, 15.0)
        assert (await up.post())[0] == 429
        await told(40.0, 5.0)
        assert await home_of(up) == other.name


async def test_while_all_are_full_nothing_is_read_and_other_models_are_served() -> None:
    async with held(2, limits={"replica_requests": 1}) as (up, gate):
        _hold(up, gate)
        sent = [asyncio.create_task(up.post()) for _ in range(2)]
        await until(lambda: _in_flight(up) == [1, 1])
        assert (await up.post())[0] == 429
        # Of a burst at one moment but one is looked at; of the others not even the body.
        ranked = await up.metric("kvring_decision_seconds_count")
        assert {(await up.post(b"{"))[0] for _ in range(3)} <= {400, 429}
        burst = await asyncio.gather(*(up.post() for _ in range(40)))
        assert {status for status, _, _ in burst} == {429}
        assert await up.metric("kvring_decision_seconds_count") - ranked < 40
        gate.open.set()
        assert {status for status, _, _ in await asyncio.gather(*sent)} == {200}
    async with held(2, limits={"replica_requests": 1}) as (up, gate):
        up.replicas[1].models = ("other",)
        await until(lambda: up.router.fleet.models() == ["m", "other"])
        up.replicas[0].answer = gate.answer
        first = asyncio.create_task(up.post())
        await until(lambda: _in_flight(up) == [1, 0])
        for _ in range(20):
            assert (await up.post())[0] == 429
            assert (await up.post({**BODY, "model": "other"}))[0] == 200
        gate.open.set()
        assert (await first)[0] == 200


async def test_an_answer_that_turns_away_is_kept_where_all_others_are_full() -> None:
    async with held(2, limits={"replica_requests": 1}, policy={"name": "session_ring"}) as (up, gate):
        home = await home_of(up)
        other = next(replica for replica in up.replicas if replica.name != home)
        up.replica(home).answer = gate.answer
        first = asyncio.create_task(up.post())
        await until(lambda: up.replica(home).running == 1)
        other.answer = answering(
            {"error": {"message": "full", "code": "queue_full"}}, 503, **{"Retry-After": "2"}
        )
        status, raw, response = await up.post()
        assert (status, json.loads(raw)["error"]["code"]) == (503, "queue_full")
        assert response.headers["Retry-After"] == "2"
        gate.open.set()
        assert (await first)[0] == 200


async def _fill(fleet: PlainFleet, knows: bool) -> int:
    """Send through each router in turn until two in a row are refused; return how many were taken."""
    refused = 0
    while refused < 2 * len(fleet.routers):
        before = sum(fleet.in_flight())
        task = fleet.send(len(fleet.sent) % len(fleet.routers), f"{len(fleet.sent)} tells of the sea. " * 20)
        await until(lambda before=before: task.done() or sum(fleet.in_flight()) > before)  # type: ignore[misc] # noqa: B023
        refused = refused + 1 if task.done() else 0
        if knows:
            await fleet.all_known()
    return sum(fleet.in_flight())


async def test_routers_that_share_their_load_fill_a_fleet_to_its_limit_together() -> None:
    limits = {"replica_requests": 5}
    async with redis_server() as server, plain_fleet(3, 3, server.url, limits=limits) as fleet:
        assert await _fill(fleet, knows=True) == 15
        assert fleet.in_flight() == [5, 5, 5]
        assert Counter(await fleet.let_all_go())[200] == 15


async def test_routers_that_share_nothing_go_by_what_replicas_report() -> None:
    slow = {"echo": {"decode_seconds": 0.3}}
    async with live_fleet(2, routers=3, replica=slow, limits={"replica_requests": 4}) as fleet:

        def known(count: int) -> bool:
            return all(
                sum(one.load.requests for one in router.fleet.replicas) == count for router in fleet.routers
            )

        chats = []
        for number in range(8):
            messages = [{"role": "user", "content": f"{number} tells of the sea. " * 20}]
            chats.append(asyncio.create_task(fleet.chat(messages, number % 3, max_tokens=64)))
            await until(lambda count=number + 1: known(count))  # type: ignore[misc]
        for router in range(3):
            assert (await fleet.chat(BODY["messages"], router)).status == 429
        for chat in chats:
            chat.cancel()
        await asyncio.gather(*chats, return_exceptions=True)


async def test_the_last_resort_is_not_full_by_what_it_told_long_ago() -> None:
    async with rig(1, limits={"replica_waiting": 10}) as up:
        replica, member = up.replicas[0], up.router.fleet.replicas[0]
        replica.waiting = 50
        await until(lambda: member.load.backlog.queued == 50)
        assert (await up.post())[0] == 429
        replica.state_status = 500
        await until(lambda: member.health.standing is Standing.SUSPECT)
        await until(lambda: not member.load.requests)
        assert (await up.post())[0] == 200


async def test_an_engine_whose_load_cannot_be_read_any_more_is_not_full_for_ever() -> None:
    crowded = vllm_page(waiting='vllm:num_requests_waiting{{engine="{e}",model_name="m"}} 50\n')
    async with served({**VLLM, "/metrics": crowded}) as (engine, _):
        fleet = {"replicas": [{"name": "v", "url": engine.url}]}
        async with rig(0, limits={"replica_waiting": 10}, fleet=fleet) as up:
            await up.ready(1)
            load = up.router.fleet.replicas[0].load
            await until(lambda: load.backlog.queued > 10)
            assert (await up.post())[0] == 429
            engine.answers["/metrics"] = "vllm:num_requests_running nonsense\n"
            await until(lambda: not load.requests)
            # Taken and sent there, where no chat is served.
            assert (await up.post())[0] == 405


async def test_routers_alone_overshoot_by_what_none_tells() -> None:
    """Engines that tell nothing, no Redis: each router fills to the limit by itself."""
    async with plain_fleet(2, 2, limits={"replica_requests": 3}) as fleet:
        assert await _fill(fleet, knows=False) == 12
        await fleet.let_all_go()
