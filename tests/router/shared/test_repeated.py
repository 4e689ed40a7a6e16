"""Repeated work: nothing that goes wrong ends it, and it can be hurried."""

from __future__ import annotations

import asyncio
import logging

import pytest

from router.shared.connection import Unreachable
from router.shared.repeated import Repeated
from tests.router.scripted import until


async def test_neither_a_silent_redis_nor_a_fault_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []
    failures: list[Exception] = [Unreachable("not there"), ZeroDivisionError("a fault of ours")]

    async def work() -> None:
        if failures:
            raise failures.pop(0)
        done.append("work")

    async def farewell() -> None:
        done.append("farewell")
        raise Unreachable("not there")

    repeated = Repeated("counting", work, 0.001)
    with caplog.at_level(logging.ERROR, "kvring.shared"):
        repeated.start()
        await until(lambda: len(done) > 2)
    await repeated.stop(farewell)
    # Only what should not be is told, with where it came from.
    (record,) = caplog.records
    assert record.getMessage() == "counting failed"
    assert record.exc_info
    assert done.pop() == "farewell"
    assert set(done) == {"work"}


async def test_it_can_be_hurried() -> None:
    times = 0

    async def work() -> None:
        nonlocal times
        times += 1

    async def farewell() -> None:
        raise AssertionError("nobody said hello")

    await Repeated("idling", work, 1).stop(farewell)
    repeated = Repeated("counting", work, 3600)
    repeated.start()
    await until(lambda: times == 1)
    repeated.hurry()
    await until(lambda: times == 2)
    await asyncio.sleep(0.01)
    assert times == 2
    await repeated.stop(work)
    assert times == 3
