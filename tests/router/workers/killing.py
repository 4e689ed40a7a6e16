"""Kills workers under light load, and holds what is scraped meanwhile against what was scraped before."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp

from tests.router.scripted import BODY
from tests.router.workers.running import Running, Series

_LOAD_SECONDS, _SCRAPE_SECONDS = 0.02, 0.05


@dataclass(slots=True)
class Watched:
    """What was seen: how often it was looked, and the counts that went back, which should be none."""

    scrapes: int = 0
    answers: int = 0
    went_back: list[tuple[Series, float, float | None]] = field(default_factory=list)
    counts: dict[Series, float] = field(default_factory=dict)

    def take(self, counts: dict[Series, float]) -> None:
        """Compare a scrape with the one before it."""
        self.scrapes += 1
        self.went_back += [
            (name, value, counts.get(name))
            for name, value in self.counts.items()
            if counts.get(name, -1.0) < value
        ]
        self.counts = counts


async def kill_workers(up: Running, workers: int, kills: int, pause_seconds: float) -> Watched:
    """Kill one worker after the other while clients ask, and return when all serve again."""
    watched, stopped = Watched(), asyncio.Event()

    async def load() -> None:
        while not stopped.is_set():
            # A worker that is killed takes its connections along.
            with suppress(aiohttp.ClientError):
                async with up.session.post(f"{up.url}/v1/chat/completions", json=BODY) as response:
                    await response.read()
                    watched.answers += response.status == 200
            await asyncio.sleep(_LOAD_SECONDS)

    async def watch() -> None:
        while not stopped.is_set():
            with suppress(aiohttp.ClientError):
                counts, _ = await up.scrape()
                watched.take(counts)
            await asyncio.sleep(_SCRAPE_SECONDS)

    tasks = [asyncio.create_task(one()) for one in (load, load, watch)]
    killed = 0
    while killed < kills:
        await asyncio.sleep(pause_seconds)
        living = up.workers()
        # Somebody has to be asked meanwhile.
        if len(living) > workers // 2:
            os.kill(living[killed % len(living)], signal.SIGKILL)
            killed += 1
    async with asyncio.timeout(60):
        while up.log().count("is started again") < kills:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
        await up.serving(workers)
    stopped.set()
    await asyncio.gather(*tasks)
    return watched
