"""Work done in the background, again and again, for as long as its owner lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from router.shared.connection import Unreachable

log = logging.getLogger("kvring.shared")


class Repeated:
    """Does `work` from `start` until `stop`, `seconds` after the last time. A silent Redis is no news."""

    def __init__(self, what: str, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        """`what` names the work where it fails by a fault of ours, which does not end it."""
        self._what = what
        self._work = work
        self._seconds = seconds
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, with the first time at once."""
        self._task = asyncio.create_task(self._run())

    def hurry(self) -> None:
        """Do it again without waiting."""
        self._hurry.set()

    async def stop(self, farewell: Callable[[], Awaitable[object]]) -> None:
        """End, and then bid farewell, if it was ever begun; a silent Redis hears none."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            with suppress(Unreachable):
                await farewell()

    async def _run(self) -> None:
        while True:
            self._hurry.clear()
            try:
                await self._work()
            except Unreachable:
                pass
            except Exception:
                log.exception("%s failed", self._what)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._hurry.wait()
