"""Walk: one request's way down its ranking, from replica to replica, until one answers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from router.fleet.load import Lease
from router.fleet.replica import Replica
from router.gateway.passage import Passage
from router.http.failures import Refused, Silent, Stopped, UpstreamError
from router.observe.outcome import Outcome
from router.observe.witness import Decision
from router.placement.ask import Choice
from router.wire.errors import ApiError, Source


class Unreached(ApiError):
    """None of the replicas that were tried could be connected to: none has seen the request."""


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One request on one replica."""

    passage: Passage
    decision: Decision
    choice: Choice
    replica: Replica
    lease: Lease


class Walk:
    """How far one request has walked down its ranking.

    `ran_once` says that a replica may have begun to compute it, `untouched` that none has seen it at all;
    `fresh` asks for a connection of its own, and `error` is how the last attempt failed.
    """

    def __init__(self, places: int) -> None:
        # By index, as a ranking is made no further than it is walked.
        self.to_try = deque(range(places))
        self.ran_once = False
        self.untouched = True
        self.fresh = False
        self.error: UpstreamError | None = None
        self._place = 0
        self._once_more = False

    def next(self) -> int:
        """Return the next place of the ranking to try."""
        self.fresh, self._once_more = self._once_more, False
        self._place = self.to_try.popleft()
        return self._place

    def once_more(self) -> None:
        """Try the same place again, on a new connection."""
        self.to_try.appendleft(self._place)
        self._once_more = True

    def end(self, outcome: Outcome) -> ApiError:
        """Return what to say now that no replica answered."""
        tried = outcome.attempts > 1
        match self.error:
            case Stopped():
                return ApiError(
                    503, "the router went down before an answer", source=Source.ROUTER, tried=True
                )
            case Silent():
                return ApiError(504, "the replica did not answer in time", source=Source.REPLICA, tried=True)
            case Refused() | None:
                kind = Unreached if self.untouched else ApiError
                return kind(
                    503,
                    "no replica could be reached",
                    source=Source.REPLICA,
                    retry_after_seconds=1,
                    tried=tried,
                )
        # It may have run, or run still: a client that tries again would have it computed twice.
        return ApiError(502, "the replica broke off before it answered", source=Source.REPLICA, tried=True)
