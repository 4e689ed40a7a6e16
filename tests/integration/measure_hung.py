"""Measures how long a stopped replica stays in: python -m tests.integration.measure_hung

Default options, a busy fleet of three processes; stopped time and again at random moments.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from time import monotonic

import aiohttp

from loadgen.children import Child
from router.fleet.replica import Replica
from tests.integration.test_hung_replica import fleet_of_processes
from tests.router.scripted import until

_STOPS = 10
_CLIENTS = 6


async def _talk(session: aiohttp.ClientSession, url: str, which: int) -> None:
    number = 0
    while True:
        number += 1
        message = {"role": "user", "content": f"{which} {number} " + "sea " * 60}
        body = {"model": "m", "max_tokens": 30, "stream": True, "messages": [message]}
        async with session.post(f"{url}/v1/chat/completions", data=json.dumps(body)) as response:
            await response.read()


async def _stop_once(member: Replica, child: Child) -> tuple[float, float]:
    """Return the seconds until it was out, and from its going on until it was back."""
    child.process.send_signal(signal.SIGSTOP)
    stopped_at = monotonic()
    await until(lambda: not member.usable)
    out = monotonic() - stopped_at
    child.process.send_signal(signal.SIGCONT)
    await until(lambda: member.usable, limit_seconds=60)
    return out, monotonic() - stopped_at - out


async def measure() -> list[tuple[float, float]]:
    """Return both for each stop."""
    chance = random.Random(1)
    async with AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        router, children = await stack.enter_async_context(fleet_of_processes(3, logs))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        clients = [asyncio.create_task(_talk(session, router.address, which)) for which in range(_CLIENTS)]
        seconds = []
        for turn in range(_STOPS):
            await asyncio.sleep(1 + chance.random())
            member = router.fleet.by_name(f"r{turn % 3}")
            assert member is not None
            seconds.append(await _stop_once(member, children[member.name]))
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return seconds


def main() -> None:
    """Print them."""
    for what, values in zip(("out", "back"), zip(*asyncio.run(measure()), strict=True), strict=True):
        row = " ".join(f"{value:.2f}" for value in sorted(values))
        sys.stdout.write(f"{what} after, in seconds: median {median(values):.2f}; {row}\n")


if __name__ == "__main__":
    main()
