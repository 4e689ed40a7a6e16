"""The waiting room: requests that no replica can take now wait a bounded time, and are let go bit by bit."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from router.config import LimitOptions
from router.observe.metrics import RouterMetrics
from router.wire.errors import ApiError, Source

# Called within one turn of the loop: each decides at once, and others are to be served in between.
_CALLED_AT_ONCE = 32
# An answer that comes whole has its first byte with its last: were all of it waited for, whoever comes would
# queue for ever behind a handful, on a replica that could serve many.
_LONGEST_TURN_SECONDS = 1.0


class Turn:
    """The right of one request that waited to be on a replica before its first byte, for a while."""

    def __init__(self, line: _Line, freed: Callable[[_Line], None]) -> None:
        self._line = line
        self._freed = freed
        self._open = True
        self._over = asyncio.get_running_loop().call_later(_LONGEST_TURN_SECONDS, self.end)

    def end(self) -> None:
        """Make room for the next: its answer has begun, or it has ended. Ending twice counts once."""
        if self._open:
            self.give_back()
            self._freed(self._line)

    def give_back(self) -> None:
        """End without use: there is nobody for the next either."""
        self._open = False
        self._over.cancel()
        self._line.out -= 1


class _Place:
    """One request's place in its line."""

    def __init__(self) -> None:
        self.called: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()


class _Line:
    """Who waits for one model, in order, and how many that waited are `out` before their first byte."""

    def __init__(self, model: str) -> None:
        self.model = model
        # A dictionary: one that leaves from the middle of a long line must not cost a walk along it.
        self.places: OrderedDict[_Place, None] = OrderedDict()
        self.out = 0


class WaitingRoom:
    """First come, first served, in a line for each model: who finds nobody speaks for all behind it."""

    def __init__(self, limits: LimitOptions, replicas: Callable[[str], int], metrics: RouterMetrics) -> None:
        """`replicas` counts those that requests for a model can be sent to now."""
        self.limits = limits
        self._replicas = replicas
        self._metrics = metrics
        self._lines: dict[str, _Line] = {}
        # Lines whose first may try: each change of the fleet lets all of them, once.
        self._due: OrderedDict[str, _Line] = OrderedDict()
        self._looking = False
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def waits(self, model: str) -> bool:
        """Say whether somebody waits for this model, behind whom who comes now has to stand."""
        line = self._lines.get(model)
        return line is not None and bool(line.places)

    def changed(self) -> None:
        """Note that the fleet changed: who waits may try. Many changes in a row are one."""
        if self._lines:
            self._due.update(self._lines)
            self._look_soon()

    def admit(self, refusal: ApiError, until: float) -> None:
        """Raise `refusal` where the time to wait is over or none, and a 503 where too many wait already."""
        if self.limits.no_replica_wait_seconds == 0 or monotonic() >= until:
            self._metrics.shed.labels("no_replica").inc()
            raise refusal
        if self._waiting >= self.limits.waiting_requests:
            self._metrics.shed.labels("waiting_requests").inc()
            raise ApiError(
                503, "too many requests wait for a replica", source=Source.ROUTER, retry_after_seconds=2
            ) from refusal

    async def wait(
        self, model: str, find: Callable[[], ApiError | None], refusal: ApiError, until: float
    ) -> Turn:
        """Return once `find` does, which else returns why not; `refusal` is raised at `until` (monotonic).

        Who has been admitted has either just tried, or stands behind others.
        """
        line = self._lines.setdefault(model, _Line(model))
        place = _Place()
        line.places[place] = None
        self._count(1)
        try:
            async with asyncio.timeout(until - monotonic()):
                return await self._found(line, place, find)
        except TimeoutError:
            self._metrics.shed.labels("no_replica").inc()
            raise refusal from None
        finally:
            self._count(-1)
            line.places.pop(place, None)
            if place.called.done() and not place.called.cancelled():
                # Called just as its time was up.
                place.called.result().end()
            self._tidy(line)

    async def _found(self, line: _Line, place: _Place, find: Callable[[], ApiError | None]) -> Turn:
        while True:
            turn = await place.called
            place.called = asyncio.get_running_loop().create_future()
            try:
                if find() is None:
                    return turn
            except BaseException:
                turn.end()
                raise
            # Nobody is there: that holds for all behind it, until the fleet changes.
            turn.give_back()
            line.places[place] = None
            line.places.move_to_end(place, last=False)

    def _freed(self, line: _Line) -> None:
        if line.places:
            self._due[line.model] = line
            self._look_soon()
        self._tidy(line)

    def _tidy(self, line: _Line) -> None:
        if not line.places and not line.out and self._lines.get(line.model) is line:
            del self._lines[line.model]
            self._due.pop(line.model, None)

    def _count(self, more: int) -> None:
        self._waiting += more
        self._metrics.waiting.set(self._waiting)

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Call those who may try now, or some of them."""
        self._looking = False
        left = _CALLED_AT_ONCE
        while self._due and left > 0:
            _, line = self._due.popitem(last=False)
            # One always tries: it learns that its model does not exist.
            allowed = max(1, self.limits.released_per_replica * self._replicas(line.model))
            free = min(allowed - line.out, len(line.places))
            for _ in range(min(free, left)):
                self._call(line)
            if free > left:
                self._due[line.model] = line
            left -= max(1, free)
        if self._due:
            self._look_soon()

    def _call(self, line: _Line) -> None:
        place, _ = line.places.popitem(last=False)
        line.out += 1
        turn = Turn(line, self._freed)
        if place.called.cancelled():
            # It is leaving, and has not come to it yet.
            turn.end()
        else:
            place.called.set_result(turn)
