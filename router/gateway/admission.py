"""Admission: which replicas have room for a request, and what is said where none has."""

from __future__ import annotations

from itertools import islice
from math import ceil, inf
from random import uniform
from time import monotonic
from typing import NamedTuple

from router.config import LimitOptions
from router.fleet.fleet import Fleet
from router.fleet.load import LoadBook
from router.observe.metrics import RouterMetrics
from router.placement.ask import Ranking
from router.wire.errors import ApiError, Source

# Places of a ranking that are looked at: where so many are full, the others hardly have any room to speak of.
LOOKED_AT = 64
# For so long nobody looks anew for room where none was, unless a request ends: predicted waits pass slower.
_CLOSED_SECONDS = 0.005
_LONGEST_RETRY_SECONDS = 30
_SPILL_SHARE = 0.5
# Of the time that a queue takes to pass: by then there is room for many.
_RETRY_SHARES = (0.25, 0.75)


class _Closed(NamedTuple):
    """That no replica of a model has room: until when, why, and in how many seconds their queue passes."""

    until: float
    why: str
    seconds: float


_OPEN = _Closed(-inf, "", 0.0)


class Admission:
    """Refuses what could only wait too long: at once, and before its prompt is named where all are full.

    A replica is full by requests, by its queue, or by the wait that is predicted there. Those behind a
    ranking's first are full by half that wait: where all have too much to do, whoever came would else go
    wherever a place has just become free, and crowd out what is cached there.
    """

    def __init__(self, fleet: Fleet, limits: LimitOptions, metrics: RouterMetrics) -> None:
        self._fleet = fleet
        self._requests = limits.replica_requests
        self._waiting = limits.replica_waiting
        self._seconds = limits.longest_wait_seconds
        self._spill_seconds = _SPILL_SHARE * limits.longest_wait_seconds
        self._metrics = metrics
        self._closed: dict[str, _Closed] = {}
        # Of all models at once.
        self._all_closed = _OPEN

    def full(self, load: LoadBook, place: int, wait_seconds: float) -> str:
        """Return by which limit a replica is full, empty where it is not.

        It stands at `place` of the ranking, and prefill waits `wait_seconds` there.
        """
        if load.requests >= self._requests:
            return "replica_requests"
        longest = self._spill_seconds if place else self._seconds
        if wait_seconds > longest:
            return "longest_wait"
        if queued := load.backlog.queued:
            if queued >= self._waiting:
                return "replica_waiting"
            if load.backlog.wait_seconds(monotonic()) > longest:
                return "longest_wait"
        return ""

    def check(self, now: float) -> None:
        """ApiError 429 where no replica of any model had room just now."""
        if now < self._all_closed.until:
            raise self._refusal(self._all_closed)

    def check_model(self, model: str, now: float) -> None:
        """ApiError 429 where no replica of this model had room just now."""
        if self._closed and now < (closed := self._closed.get(model, _OPEN)).until:
            raise self._refusal(closed)

    def reopen(self) -> None:
        """Note that a request has left a replica: who comes next may look there."""
        if self._closed:
            self._closed.clear()
            self._all_closed = _OPEN

    def refuse(self, model: str, ranking: Ranking, now: float) -> ApiError:
        """Return what to say now that none of a ranking has room, and say so to others for a moment."""
        why, seconds = "longest_wait", inf
        for place, choice in enumerate(islice(ranking, LOOKED_AT)):
            if (replica := self._fleet.by_name(choice.name)) is None:
                continue
            load = replica.load
            why = self.full(load, place, choice.wait_seconds) or why
            backlog = load.backlog
            passes = max(choice.wait_seconds, backlog.wait_seconds(now), backlog.service_seconds)
            seconds = min(seconds, passes)
        closed = _Closed(now + _CLOSED_SECONDS, why, seconds if seconds < inf else self._seconds)
        models = self._fleet.models()
        self._closed[model] = closed
        self._closed = {name: one for name in models if (one := self._closed.get(name, _OPEN)).until > now}
        if len(self._closed) == len(models):
            self._all_closed = min(self._closed.values())
        return self._refusal(closed)

    def _refusal(self, closed: _Closed) -> ApiError:
        self._metrics.of(self._metrics.shed, closed.why).inc()
        # Those that are refused together shall not come back together.
        share = uniform(*_RETRY_SHARES)
        seconds = min(_LONGEST_RETRY_SECONDS, max(1, ceil(closed.seconds * share)))
        return ApiError(
            429,
            "all replicas that could serve this have as much to do as they may",
            source=Source.ROUTER,
            code="overloaded",
            retry_after_seconds=seconds,
        )
