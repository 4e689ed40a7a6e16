"""Walk: one request's way down its ranking, from replica to replica, until one answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from router.fleet.fleet import Fleet
from router.fleet.load import Lease
from router.fleet.replica import Replica
from router.gateway.admission import LOOKED_AT, Admission
from router.gateway.passage import Passage
from router.http.failures import Exhausted, Refused, Silent, Stopped, UpstreamError
from router.observe.outcome import Outcome
from router.observe.witness import Decision
from router.placement.ask import Choice, Ranking
from router.wire.errors import ApiError, Source


class Unreached(ApiError):
    """None of the replicas that were tried could be connected to: none has seen the request."""


class Attempt:
    """One request on one replica, counted there between `with`."""

    __slots__ = ("choice", "decision", "lease", "passage", "replica")

    def __init__(
        self, passage: Passage, decision: Decision, choice: Choice, replica: Replica, lease: Lease
    ) -> None:
        self.passage = passage
        self.decision = decision
        self.choice = choice
        self.replica = replica
        self.lease = lease

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Count it out, however it ended."""
        self.replica.stall.ended(self.lease)
        self.replica.load.close(self.lease)


class Walk:
    """How far one request has walked down its ranking, past replicas without room for it.

    `ran_once` says that a replica may have begun to compute it, `untouched` that none has seen it at all,
    and `full` that one at least had no room. `fresh` says that the place is tried again, as a kept connection
    to it had ended, and `error` is how the last attempt failed.
    """

    __slots__ = (
        "_admission",
        "_ahead",
        "_attempts",
        "_fleet",
        "_here",
        "_last",
        "_once_more",
        "_place",
        "_ranking",
        "_wider",
        "error",
        "fresh",
        "full",
        "ran_once",
        "untouched",
    )

    def __init__(
        self,
        ranking: Ranking,
        attempts: int,
        fleet: Fleet,
        admission: Admission,
        wider: Callable[[], Ranking] | None = None,
    ) -> None:
        """`wider` ranks also those that warm and have their share: asked once, where nobody else is left."""
        self._wider = wider
        self._ranking = ranking
        self._attempts = attempts
        self._fleet = fleet
        self._admission = admission
        # By index, as a ranking is made no further than it is walked.
        self._place = 0
        self._last = min(len(ranking), LOOKED_AT)
        self._ahead: tuple[Choice, Replica] | None = None
        self._here: tuple[Choice, Replica] | None = None
        self.ran_once = False
        self.untouched = True
        self.full = False
        self.fresh = False
        self.error: UpstreamError | None = None
        self._once_more = False

    def ahead(self) -> bool:
        """Look for the next that may be tried; False where there is none."""
        while self._ahead is None and self._attempts and self._place < self._last:
            place = self._place
            self._place = place + 1
            choice = self._ranking[place]
            replica = self._fleet.by_name(choice.name)
            if replica is None:
                continue
            if self._admission.full(replica.load, place, choice.wait_seconds):
                self.full = True
                continue
            self._ahead = choice, replica
        if self._ahead is None and self._attempts and self._wider is not None and self._place < LOOKED_AT:
            self._widen(self._wider())
            return self.ahead()
        return self._ahead is not None

    def _widen(self, ranking: Ranking) -> None:
        """Walk on to those that the ranking left out, counting places from where it ended."""
        self._wider = None
        walked = [self._ranking[place] for place in range(self._place)]
        names = {choice.name for choice in walked}
        self._ranking = [*walked, *(choice for choice in ranking if choice.name not in names)]
        self._last = min(len(self._ranking), LOOKED_AT)

    def next(self) -> tuple[Choice, Replica]:
        """Return the one that is ahead, and go there."""
        assert self._ahead is not None
        self.fresh, self._once_more = self._once_more, False
        self._attempts -= 1
        self._here, self._ahead = self._ahead, None
        return self._here

    @property
    def afresh(self) -> bool:
        """Whether to send over a new connection.

        Of a kept one that ends, nobody can tell whether its replica saw the request: where one may have begun
        already, that is no longer left open.
        """
        return self.fresh or self.ran_once

    def once_more(self) -> None:
        """Try the same place again, on a new connection."""
        self._ahead = self._here
        self._attempts += 1
        self._once_more = True

    def end(self, outcome: Outcome) -> ApiError:
        """Return what to say now that no replica answered."""
        tried = outcome.attempts > 1
        match self.error:
            case Stopped():
                return ApiError(
                    503, "the router went down before an answer", source=Source.ROUTER, tried=True
                )
            case Exhausted():
                return ApiError(
                    503,
                    "the router cannot open more connections now",
                    source=Source.ROUTER,
                    retry_after_seconds=1,
                    tried=tried,
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
