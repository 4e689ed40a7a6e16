"""Succession: a stream whose replica died goes on with another, from just where the client is."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic

from router.config import LimitOptions
from router.engines.journal import Journal
from router.fleet.fleet import Fleet
from router.fleet.replica import Replica
from router.gateway.answer import EventAnswer
from router.gateway.decide import Decider
from router.gateway.delivery import Delivery
from router.gateway.dispatch import Dispatch, size_of
from router.gateway.walk import Attempt
from router.http.failures import Refused, Stopped, UpstreamError
from router.observe.metrics import RouterMetrics
from router.placement.ask import Choice
from router.wire.errors import ApiError

# Of one stream. Fleets in which more die within an answer have other troubles.
_MOST_DEATHS = 8


class Succession:
    """Finds who goes on, by a new decision: the fleet may be another than when the stream began."""

    def __init__(
        self,
        fleet: Fleet,
        decider: Decider,
        dispatch: Dispatch,
        delivery: Delivery,
        limits: LimitOptions,
        metrics: RouterMetrics,
    ) -> None:
        self._fleet = fleet
        self._decider = decider
        self._dispatch = dispatch
        self._delivery = delivery
        self._limits = limits
        self._metrics = metrics

    async def carry_on(self, attempt: Attempt, answer: EventAnswer, journal: Journal) -> None:
        """Have the stream brought to its end by others; where nobody can, `answer` is still broken."""
        dead: set[str] = set()
        name = attempt.choice.name
        while answer.broken is not None and len(dead) < _MOST_DEATHS:
            if isinstance(answer.broken, Stopped):
                return
            dead.add(name)
            closing = journal.closing()
            if closing is not None:
                answer.close_with(closing)
                attempt.passage.outcome.result = "ok"
                break
            successor = await self._by_next(attempt, answer, journal, dead)
            if successor is None:
                break
            name = successor
        self._count("failed" if answer.broken is not None else "continued")

    async def _by_next(
        self, attempt: Attempt, answer: EventAnswer, journal: Journal, dead: set[str]
    ) -> str | None:
        """Let the first that can go on; return its name once it ended, however it did, or None for nobody."""
        prepared = attempt.passage.prepared
        tried = set(dead)
        # Those that warm have their share of new requests. One that began before is to end, all the same.
        for everybody in (False, True):
            with suppress(ApiError):
                _, ranking = self._decider.rank(prepared.ask, monotonic(), everybody)
                for choice in ranking:
                    replica = self._fleet.by_name(choice.name)
                    if replica is None or choice.name in tried:
                        continue
                    resumed = journal.resume(
                        replica.engine, prepared.raw, prepared.inserted, replica.context_tokens
                    )
                    if resumed is None:
                        continue
                    if len(tried) - len(dead) >= self._limits.attempts:
                        return None
                    tried.add(choice.name)
                    if await self._by(attempt, answer, journal, choice, replica, resumed):
                        return choice.name
        return None

    async def _by(
        self,
        attempt: Attempt,
        answer: EventAnswer,
        journal: Journal,
        choice: Choice,
        replica: Replica,
        resumed: tuple[str, list[bytes]],
    ) -> bool:
        """Let one replica go on; say whether it did, however far it came."""
        path, body = resumed
        query = attempt.passage.request.target.partition(b"?")[2]
        target = path.encode() + (b"?" + query if query else b"")
        with self._dispatch.attempt(attempt.passage, attempt.decision, choice, replica) as following:
            try:
                exchange = await self._dispatch.send(following, target, [*body], size_of(body))
            except UpstreamError as error:
                if isinstance(error, Refused):
                    replica.health.unreachable()
                return False
            try:
                if exchange.status != 200 or exchange.content_type != b"text/event-stream":
                    return False
                await self._delivery.go_on(following, exchange, answer, journal)
            finally:
                exchange.close()
        return True

    def _count(self, result: str) -> None:
        self._metrics.of(self._metrics.continued, result).inc()
