"""Succession: a stream whose replica died goes on with another, from just where the client is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from time import monotonic

from router.config import LimitOptions
from router.engines.journal import Journal
from router.fleet.fleet import Fleet
from router.fleet.replica import Replica
from router.gateway.admission import LOOKED_AT, Admission
from router.gateway.answer import EventAnswer
from router.gateway.decide import Decider
from router.gateway.delivery import Delivery
from router.gateway.dispatch import Dispatch, size_of
from router.gateway.drain import drain
from router.gateway.walk import Attempt
from router.http.failures import Refused, Silent, Stalled, Stopped, UpstreamError
from router.observe.metrics import RouterMetrics
from router.placement.ask import Ask, Choice
from router.placement.view import FleetView
from router.wire.errors import TURNED_AWAY, ApiError

# For one stream, each once. Fleets in which more fail within an answer have other troubles.
_MOST_TRIED = 8


class Succession:
    """Finds who goes on, by a new decision: the fleet may be another than when the stream began."""

    def __init__(
        self,
        fleet: Fleet,
        decider: Decider,
        dispatch: Dispatch,
        delivery: Delivery,
        admission: Admission,
        limits: LimitOptions,
        metrics: RouterMetrics,
    ) -> None:
        self._fleet = fleet
        self._decider = decider
        self._dispatch = dispatch
        self._delivery = delivery
        self._admission = admission
        self._limits = limits
        self._metrics = metrics

    async def carry_on(self, attempt: Attempt, answer: EventAnswer, journal: Journal) -> None:
        """Have the stream brought to its end by others; where nobody can, `answer` is still broken."""
        name: str | None = attempt.choice.name
        tried = {attempt.choice.name}
        had: int | None = None
        while answer.broken is not None and name is not None:
            if isinstance(answer.broken, Stopped):
                return
            attempt.decision.not_reached(name)
            closing = journal.closing()
            if closing is not None:
                self._delivery.end_with(attempt, answer, closing)
                break
            if not _may_go_on(answer.broken, journal, had):
                break
            had = journal.tokens
            name = await self._by_next(attempt, answer, journal, tried)
        self._count("failed" if answer.broken is not None else "continued")

    async def _by_next(
        self, attempt: Attempt, answer: EventAnswer, journal: Journal, tried: set[str]
    ) -> str | None:
        """Let the first that can go on; return its name once it ended, however it did, or None for nobody."""
        prepared = attempt.passage.prepared
        left = self._limits.attempts
        for fleet, choice, replica in self._candidates(prepared.ask, tried):
            if not left or len(tried) >= _MOST_TRIED:
                break
            resumed = journal.resume(replica.engine, prepared.raw, prepared.inserted, replica.context_tokens)
            if resumed is None:
                continue
            left -= 1
            tried.add(choice.name)
            with self._dispatch.attempt(attempt.passage, attempt.decision, choice, replica) as following:
                if await self._by(following, answer, journal, fleet, resumed):
                    return choice.name
        return None

    def _candidates(self, ask: Ask, tried: set[str]) -> Iterator[tuple[FleetView, Choice, Replica]]:
        """Yield who may go on, best first, and those without room behind all others."""
        full = []
        # Those that warm have their share of new requests. One that began before is to end, all the same.
        for everybody in (False, True):
            try:
                fleet, ranking = self._decider.rank(ask, monotonic(), everybody)
            except ApiError:
                continue
            for place, choice in enumerate(islice(ranking, LOOKED_AT)):
                replica = self._fleet.by_name(choice.name)
                if replica is None or choice.name in tried:
                    continue
                if self._admission.full(replica.load, place, choice.wait_seconds):
                    full.append((fleet, choice, replica))
                else:
                    yield fleet, choice, replica
        for one in full:
            if one[1].name not in tried:
                yield one

    async def _by(
        self,
        following: Attempt,
        answer: EventAnswer,
        journal: Journal,
        fleet: FleetView,
        resumed: tuple[str, list[bytes]],
    ) -> bool:
        """Let one replica go on; say whether it may have begun to, however far it came."""
        path, body = resumed
        query = following.passage.request.target.partition(b"?")[2]
        target = path.encode() + (b"?" + query if query else b"")
        try:
            # Over a new connection: a kept one that ends would leave open whether the replica has begun.
            exchange = await self._dispatch.send(following, target, [*body], size_of(body), fresh=True)
        except UpstreamError as error:
            await self._dispatch.judge(following, error)
            if isinstance(error, Refused):
                return False
            answer.broken = error
            return True
        try:
            if exchange.status == 200 and exchange.content_type == b"text/event-stream":
                await self._delivery.go_on(following, exchange, answer, journal, fleet)
                return True
            if exchange.status in TURNED_AWAY:
                await drain(exchange)
            elif exchange.status >= 500:
                following.replica.health.answer_failed(monotonic())
        finally:
            exchange.close()
        return False

    def _count(self, result: str) -> None:
        self._metrics.of(self._metrics.continued, result).inc()


def _may_go_on(broken: UpstreamError, journal: Journal, had: int | None) -> bool:
    """Say whether another may begin. The client `had` so many tokens when one last went on, None before that.

    Of who died nothing runs any more. Who is silent may be computing all of it; once the client had a part
    of it, that one is left behind, and the end of its connection ends its work. Who failed without a token
    more may have done so for what is asked: that would end one replica after another.
    """
    if had is None:
        return journal.tokens > 0 or not isinstance(broken, Silent | Stalled)
    return journal.tokens > had or journal.gone
