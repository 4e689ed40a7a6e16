"""Arrival models: Poisson gaps, and starts that wait for no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from random import Random
from statistics import mean, pvariance
from typing import Any

import pytest

from loadgen.arrivals import Closed, Open, gaps_seconds, think
from loadgen.workloads.session import Session


class Named:
    """A session that asks nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def next_body(self, answer: str | None) -> dict[str, Any] | None:
        return None


def named(count: int) -> Iterator[Session]:
    return iter([Named(str(index)) for index in range(count)])


def test_gaps_are_poisson() -> None:
    """20,000 gaps at 4 a second: exponential mean and deviation 1/4; counts a second with variance = mean."""
    gaps = list(islice(gaps_seconds(4.0, Random(11)), 20_000))
    assert mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert pvariance(gaps) ** 0.5 == pytest.approx(0.25, rel=0.05)
    counts = [0] * 4000
    now = 0.0
    for gap in gaps:
        now += gap
        if now < len(counts):
            counts[int(now)] += 1
    assert mean(counts) == pytest.approx(4.0, rel=0.03)
    assert pvariance(counts) == pytest.approx(4.0, rel=0.1)
    assert list(islice(gaps_seconds(4.0, Random(11)), 5)) == gaps[:5]


def test_thinking() -> None:
    assert think(0.0, Random(1)) == 0
    pauses = [think(2.0, Random(index)) for index in range(2000)]
    assert mean(pauses) == pytest.approx(2.0, rel=0.1)


async def test_open_starts_wait_for_no_answer() -> None:
    """No session ends before the last has begun, and yet all begin, in order and by the clock's gaps."""
    begun: list[str] = []
    asked: list[float] = []
    all_begun = asyncio.Event()

    async def converse(session: Session) -> None:
        begun.append(session.name)
        if len(begun) == 20:
            all_begun.set()
        await all_begun.wait()

    async def pause(seconds: float) -> None:
        asked.append(seconds)
        await asyncio.sleep(0)

    async with asyncio.timeout(10):
        await Open(1000.0).play(named(20), converse, pause, Random(3))
    assert begun == [str(index) for index in range(20)]
    # Pauses count from the schedule, so what is late by a little is made up for.
    gaps = list(islice(gaps_seconds(1000.0, Random(3)), 20))
    assert all(paused <= sum(gaps[: index + 1]) + 1e-9 for index, paused in enumerate(asked[:20]))


@pytest.mark.parametrize("concurrency", [1, 3, 50])
async def test_closed_concurrency_is_never_exceeded_and_is_used(concurrency: int) -> None:
    now = 0
    most = 0
    served: list[str] = []

    async def converse(session: Session) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1
        served.append(session.name)

    async def pause(seconds: float) -> None:
        await asyncio.sleep(0)

    await Closed(concurrency).play(named(30), converse, pause, Random(1))
    assert most == min(concurrency, 30)
    assert sorted(served, key=int) == [str(index) for index in range(30)]


async def test_closed_users_do_not_begin_at_once() -> None:
    pauses: list[float] = []

    async def converse(session: Session) -> None:
        return None

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    await Closed(4, think_seconds=1.0).play(named(4), converse, pause, Random(1))
    assert len(set(pauses)) == len(pauses) >= 4
    assert all(seconds > 0 for seconds in pauses)
