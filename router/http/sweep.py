"""Sweep: looks at what has a time limit, again and again; so that no request pays for timers of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.05, 1.0


class Sweep:
    """Calls `look` a few times within the shortest limit, and at least once a second, until `stop`."""

    def __init__(self, look: Callable[[], None], limits: Callable[[], Iterable[float]]) -> None:
        """`limits` returns the seconds to be held, as they are now. Needs a running event loop."""
        self._look = look
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(_SHORTEST_SECONDS, self._turn)

    def stop(self) -> None:
        """Look no more."""
        self._next.cancel()

    def _turn(self) -> None:
        pause = max(_SHORTEST_SECONDS, min(_LONGEST_SECONDS, min(self._limits()) / 4))
        self._next = self._loop.call_later(pause, self._turn)
        self._look()
