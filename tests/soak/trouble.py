"""The troubles of the soak: what befalls paths and replicas as a whole, drawn from a seed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from tests.soak.path import Path
from tests.soak.replicas import Replicas

# So many are in trouble at once at most: a fleet without replicas has nothing to tell.
_MOST_AT_ONCE = 2


class Trouble:
    """Makes trouble until it is told to end; then all paths and replicas are as they were."""

    def __init__(
        self, paths: Sequence[Path], replicas: Replicas, random: Random, pause_seconds: float
    ) -> None:
        self.made: Counter[str] = Counter()
        # From when to when.
        self.times: list[tuple[float, float]] = []
        self._paths = paths
        self._replicas = replicas
        self._random = random
        self._pause_seconds = pause_seconds
        self._free = list(paths)

    async def run(self, over: asyncio.Event) -> None:
        """Make trouble until it is over, and then good what was done."""
        kinds: dict[Callable[[Path], Awaitable[None]], int] = {
            self._kill: 3,
            self._stop: 3,
            self._refuse: 2,
            self._freeze: 2,
            self._cut: 2,
            self._cut_idle: 3,
        }
        async with asyncio.TaskGroup() as all:
            while not over.is_set():
                await asyncio.sleep(self._random.uniform(0.2, 1.8) * self._pause_seconds)
                if len(self._free) <= len(self._paths) - _MOST_AT_ONCE:
                    continue
                path = self._free.pop(self._random.randrange(len(self._free)))
                (make,) = self._random.choices(list(kinds), list(kinds.values()))
                self.made[make.__name__.strip("_").replace("_", " ")] += 1
                all.create_task(self._made(make, path))

    async def _made(self, make: Callable[[Path], Awaitable[None]], path: Path) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        path.trouble(True)
        try:
            await make(path)
        finally:
            path.trouble(False)
            self.times.append((began_at, loop.time()))
            self._free.append(path)

    async def _kill(self, path: Path) -> None:
        """kill -9, and a new process a while later."""
        # First of all, so that nobody finds somebody listening where a process has died.
        path.refuse()
        self._replicas.kill(path.name)
        await asyncio.sleep(self._random.uniform(0.1, 1.5))
        await self._replicas.start(path.name)
        await path.listen()

    async def _stop(self, path: Path) -> None:
        """SIGSTOP, and SIGCONT."""
        self._replicas.stop(path.name)
        await asyncio.sleep(self._random.uniform(0.3, 3.0))
        self._replicas.let_go(path.name)

    async def _refuse(self, path: Path) -> None:
        """Nobody new gets through; those that are there stay."""
        path.refuse()
        await asyncio.sleep(self._random.uniform(0.2, 1.5))
        await path.listen()

    async def _freeze(self, path: Path) -> None:
        """Nothing comes through in either direction, and nobody is told."""
        path.freeze(True)
        await asyncio.sleep(self._random.uniform(0.2, 2.5))
        path.freeze(False)

    async def _cut(self, path: Path) -> None:
        """All connections are reset."""
        path.cut()

    async def _cut_idle(self, path: Path) -> None:
        """All connections that carry nothing are reset."""
        path.cut_idle()
