"""Clients that leave in any phase: their replicas are told, and nothing is left of them in the router."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from tests.router.gateway.leaving import NOBODYS, PHASES, SEEN, Leaver, Watched, in_groups
from tests.router.http.alone import connect
from tests.router.scripted import Rig, rig, until

# Filling all that lies between a replica and a client takes long, and so does a large body.
_WEIGHTS = {"unread": 0.1, "prepared": 0.3}
_ROUNDS = 1000
_OPTIONS: dict[str, Any] = {
    "policy": {"name": "round_robin"},
    "models": {NOBODYS: {}},
    "limits": {"no_replica_wait_seconds": 5},
}
# A replica that breaks off again and again would be taken out.
_FLEET = {"failures_to_suspect": 100}


def _watched(up: Rig, seed: int) -> tuple[Watched, Leaver]:
    watched = Watched()
    for replica in up.replicas:
        watched.serve(replica)
    port = urlsplit(up.router.address).port
    assert port is not None
    return watched, Leaver(port, watched, seed)


async def _nothing_is_left(up: Rig) -> None:
    """Wait until nobody is served, and look at all that counts requests."""
    router = up.router
    await until(lambda: router.gateway.held == 0 and router.core.pool.busy == 0)
    await until(lambda: not sum(replica.running for replica in up.replicas))
    for replica in router.fleet.replicas:
        assert (replica.load.in_flight, replica.load.in_flight_tokens) == (0, 0)
        assert (replica.load.waiting_for_answers, replica.load.unreported_seconds) == (0, 0.0)
        assert (len(replica.stall), len(replica.stall.watchers)) == (0, 0)
    for gauge in ("in_flight_requests", "replica_in_flight_requests", "waiting_requests"):
        assert await up.metric(f"kvring_{gauge}") == 0, gauge


async def test_a_replica_is_told_in_every_phase() -> None:
    async with rig(3, **_OPTIONS, fleet=_FLEET) as up:
        _, leaver = _watched(up, 1)
        for phase in PHASES:
            seen = await leaver.leave(phase, f"{phase}-0")
            assert (seen is None) == (phase not in SEEN)
            await _nothing_is_left(up)
        # One whose client was gone before it was whole is none at all; a prepared one may have been sent.
        left = await up.metric("kvring_requests_total", outcome="client_closed")
        assert len(SEEN) <= left == await up.metric("kvring_requests_total")
        unseen = await up.metric("kvring_refusals_total", status="499")
        assert unseen == await up.metric("kvring_refusals_total")
        assert left + unseen < len(PHASES)


async def test_nobody_waits_for_a_client_that_left() -> None:
    async with rig(1, **_OPTIONS) as up:
        _, leaver = _watched(up, 4)
        client = await connect(urlsplit(up.router.address).port or 0)
        await asyncio.get_running_loop().sock_sendall(client, leaver.request("queued", "q"))
        await until(lambda: up.router.gateway.held == 1)
        assert await up.metric("kvring_waiting_requests") == 1
        client.close()
        await _nothing_is_left(up)
        assert await up.metric("kvring_refusals_total", status="499") == 1


async def test_a_thousand_that_leave_leave_nothing_behind() -> None:
    draw = random.Random(20)
    async with rig(3, **_OPTIONS, fleet=_FLEET) as up:
        _, leaver = _watched(up, 2)
        await _nothing_is_left(up)
        files, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
        weights = [_WEIGHTS.get(phase, 1.0) for phase in PHASES]
        work: list[Callable[[], Awaitable[Any]]] = []
        for number, phase in enumerate(draw.choices(PHASES, weights, k=_ROUNDS)):
            work.append(partial(leaver.leave, phase, f"{phase}-{number}"))
            # Some of those among them are served, and some have replicas that reset.
            if number % 20 == 0:
                work.append(partial(leaver.stay, draw.choice(("whole", "reset")), f"stays-{number}"))
        await in_groups(work, 24)
        await _nothing_is_left(up)
        assert up.router.core.pool.idle <= 64
        await up.router.core.pool.close()
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        # Polls may hold another connection to each replica than before.
        await until(lambda: len(os.listdir("/proc/self/fd")) <= files + 2 * len(up.replicas))


async def test_a_replica_that_starts_anew_gets_no_more_than_its_share() -> None:
    async with rig(3, policy={"name": "least_requests"}, fleet={**_FLEET, "warming_seconds": 0}) as up:
        _, leaver = _watched(up, 3)
        phases = ("headers", "events", "body")
        await in_groups([partial(leaver.leave, phases[n % 3], f"a-{n}") for n in range(150)], 12)
        restarted = up.replicas[1]
        port = urlsplit(restarted.url).port
        assert port is not None
        await restarted.stop()
        restarted.uid = "r1-2"
        await restarted.start(port)
        await up.ready(3)
        counts = [len(replica.requests) for replica in up.replicas]
        assert set(await in_groups([partial(leaver.stay, "whole", f"b-{n}") for n in range(300)], 12)) == {
            200
        }
        got = [len(replica.requests) - before for replica, before in zip(up.replicas, counts, strict=True)]
        assert sum(got) == 300
        assert max(got) <= 1.5 * 100
