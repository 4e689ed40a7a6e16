"""The waiting room: requests that no replica can take now wait a bounded time, and are let go bit by bit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from router.config import LimitOptions
from router.observe.metrics import RouterMetrics
from router.wire.errors import ApiError, Source


class Turn:
    """The right of one request that waited to be on a replica before its first byte."""

    def __init__(self, room: WaitingRoom) -> None:
        self._room = room
        self._open = True

    def end(self) -> None:
        """Make room for the next: its answer has begun, or it has ended. Ending twice counts once."""
        if self._open:
            self._open = False
            self._room._ended()


class _Place:
    """One request's place in the queue; `tried_at` is the change of the fleet after which it last tried."""

    def __init__(self, tried_at: int) -> None:
        self.tried_at = tried_at
        self.called = _future()


class WaitingRoom:
    """First come, first served, but that who still finds no replica for its model lets the next try."""

    def __init__(self, limits: LimitOptions, replicas: Callable[[], int], metrics: RouterMetrics) -> None:
        """`replicas` counts those that requests can be sent to now."""
        self.limits = limits
        self._replicas = replicas
        self._metrics = metrics
        self._queue: deque[_Place] = deque()
        self._out = 0
        self._changes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def changed(self) -> None:
        """Note that the fleet changed: who waits may try."""
        self._changes += 1
        self._call()

    async def wait(self, find: Callable[[], bool], refusal: ApiError) -> Turn:
        """Return once `find` does; `refusal` is raised after too long, 503 where too many wait already."""
        limits = self.limits
        if limits.no_replica_wait_seconds == 0:
            raise refusal
        if len(self._queue) >= limits.waiting_requests:
            self._metrics.shed.labels("waiting_requests").inc()
            raise ApiError(
                503, "too many requests wait for a replica", source=Source.ROUTER, retry_after_seconds=2
            ) from refusal
        began = monotonic()
        # It has just tried: the next change is its first chance.
        place = _Place(self._changes)
        self._queue.append(place)
        self._metrics.waiting.set(len(self._queue))
        try:
            async with asyncio.timeout(limits.no_replica_wait_seconds):
                return await self._found(place, find)
        except TimeoutError:
            self._metrics.shed.labels("no_replica").inc()
            raise refusal from None
        finally:
            self._leave(place)
            self._metrics.waiting.set(len(self._queue))
            self._metrics.waited.observe(monotonic() - began)

    async def _found(self, place: _Place, find: Callable[[], bool]) -> Turn:
        while True:
            turn = await place.called
            place.called = _future()
            found = False
            try:
                found = find()
                if found:
                    return turn
                self._queue.append(place)
            finally:
                if not found:
                    turn.end()

    def _leave(self, place: _Place) -> None:
        with suppress(ValueError):
            self._queue.remove(place)
        if place.called.done() and not place.called.cancelled():
            # Called just as its time was up.
            place.called.result().end()

    def _ended(self) -> None:
        self._out -= 1
        self._call()

    def _call(self) -> None:
        """Call those who may try now."""
        allowed = self.limits.released_per_replica * self._replicas()
        for _ in range(len(self._queue)):
            if self._out >= allowed:
                return
            place = self._queue.popleft()
            if place.tried_at == self._changes:
                self._queue.append(place)
            elif not place.called.cancelled():
                place.tried_at = self._changes
                self._out += 1
                place.called.set_result(Turn(self))


def _future() -> asyncio.Future[Turn]:
    return asyncio.get_running_loop().create_future()
