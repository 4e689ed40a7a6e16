"""The relay: walks down a ranking until a replica answers, and has that answer delivered."""

from __future__ import annotations

from functools import partial
from time import monotonic

from router.config import LimitOptions
from router.engines.journal import Journal
from router.fleet.fleet import Fleet
from router.fleet.replica import Replica
from router.gateway.admission import Admission
from router.gateway.answer import EventAnswer
from router.gateway.budget import RetryBudget
from router.gateway.continuation import journal_of
from router.gateway.decide import Decider
from router.gateway.delivery import Delivery
from router.gateway.dispatch import Dispatch, body_of
from router.gateway.drain import drain
from router.gateway.passage import Passage
from router.gateway.succession import Succession
from router.gateway.walk import Attempt, Walk
from router.http.exchange import Exchange
from router.http.failures import NotListening, Refused, UpstreamError, Vanished
from router.observe.metrics import RouterMetrics
from router.observe.witness import Decision, Witness
from router.placement.ask import Ranking
from router.wire.errors import RAN_HEADER, TURNED_AWAY, ApiError

_RAN = RAN_HEADER.encode()


class Relay:
    """Takes requests to replicas."""

    def __init__(
        self,
        fleet: Fleet,
        dispatch: Dispatch,
        delivery: Delivery,
        succession: Succession,
        admission: Admission,
        budget: RetryBudget,
        limits: LimitOptions,
        metrics: RouterMetrics,
        decider: Decider,
        witness: Witness,
    ) -> None:
        self._decider = decider
        self._witness = witness
        self._fleet = fleet
        self._dispatch = dispatch
        self._delivery = delivery
        self._succession = succession
        self._admission = admission
        self._limits = limits
        self._budget = budget
        self._metrics = metrics

    async def run(self, passage: Passage) -> None:
        """Answer the request; ApiError where no replica does, or none has room, Unreached where none could be
        connected to.
        """
        decision = passage.decision
        assert decision is not None
        ranking = decision.ranking
        self._budget.earn()
        wider = partial(self._rank_wider, decision)
        walk = Walk(ranking, self._limits.attempts, self._fleet, self._admission, wider)
        while walk.ahead():
            choice, replica = walk.next()
            with self._dispatch.attempt(passage, decision, choice, replica) as attempt:
                journal = self._journal(passage, replica)
                try:
                    exchange = await self._dispatch.send(
                        attempt, passage.request.target, *body_of(passage.prepared, journal), walk.afresh
                    )
                except UpstreamError as error:
                    await self._failed(attempt, error, walk)
                    continue
                try:
                    if self._turned_away(attempt, exchange, walk):
                        await drain(exchange)
                        continue
                    stream = await self._pass_on(attempt, exchange, journal)
                finally:
                    # Wholly read, the connection is back in the pool already; else nobody wants the rest.
                    exchange.close()
            if stream is not None and stream.broken is not None:
                await self._carry_on(attempt, stream, journal)
            return
        if walk.full and walk.error is None:
            raise self._admission.refuse(decision.ask.model, ranking, monotonic())
        raise walk.end(passage.outcome) from walk.error

    def _rank_wider(self, decision: Decision) -> Ranking:
        """Rank also those that warm and have their share; none where nobody is there."""
        now = monotonic()
        try:
            fleet, ranking = self._decider.rank(decision.ask, now, everybody=True)
        except ApiError:
            return ()
        self._witness.widened(decision, fleet, now)
        return ranking

    def _journal(self, passage: Passage, replica: Replica) -> Journal | None:
        """Return what keeps account of a stream that another replica could go on with."""
        if not (passage.prepared.resumable and self._limits.continue_streams):
            return None
        return journal_of(replica.engine, passage.request.path)

    def _turned_away(self, attempt: Attempt, exchange: Exchange, walk: Walk) -> bool:
        """Take in that there is an answer; say whether it is only that another should be asked."""
        walk.untouched = False
        if exchange.status not in TURNED_AWAY or not walk.ahead():
            return False
        ran = _RAN in exchange.headers.bytes
        if (ran and walk.ran_once) or not self._budget.spend():
            return False
        walk.ran_once = walk.ran_once or ran
        self._note_failover(attempt, str(exchange.status))
        return True

    async def _failed(self, attempt: Attempt, error: UpstreamError, walk: Walk) -> None:
        """Take in that there is no answer; ApiError where no other may be asked."""
        before, walk.error = walk.error, error
        if isinstance(error, Vanished) and error.stale:
            # Only the idle connection was closed, most likely: the same replica, on a new one.
            walk.untouched = False
            walk.once_more()
            self._note_failover(attempt, "stale")
            return
        ended = await self._dispatch.judge(attempt, error)
        if isinstance(error, Refused):
            if walk.fresh and not isinstance(error, NotListening):
                # What came over the connection that ended may run: who knows behind which wall.
                walk.error = before
                raise walk.end(attempt.passage.outcome) from error
            # One that was there a moment ago may have begun; that has ended with it.
            walk.ran_once = walk.ran_once or walk.fresh
            self._note_failover(attempt, "refused")
            return
        walk.untouched = False
        if ended and not walk.ran_once:
            # Its process has ended, and with it what it may have begun: nobody computes this now.
            walk.ran_once = True
            self._note_failover(attempt, "gone")
            return
        raise walk.end(attempt.passage.outcome) from error

    async def _pass_on(
        self, attempt: Attempt, exchange: Exchange, journal: Journal | None
    ) -> EventAnswer | None:
        """Pass an answer on; return it where it is a stream, which may have broken off."""
        if journal is None:
            # Sent, answered, and never to be sent again: a long stream need not hold it.
            attempt.passage.forget_body()
        readable = b"content-encoding" not in exchange.headers.bytes
        if not (readable and exchange.status == 200 and exchange.content_type == b"text/event-stream"):
            await self._delivery.body(attempt, exchange)
            return None
        return await self._delivery.stream(attempt, exchange, journal)

    async def _carry_on(self, attempt: Attempt, stream: EventAnswer, journal: Journal | None) -> None:
        """Bring a broken stream to its end, or tell the client that this is none."""
        if journal is not None:
            await self._succession.carry_on(attempt, stream, journal)
        if stream.broken is not None:
            stream.give_up()

    def _note_failover(self, attempt: Attempt, reason: str) -> None:
        attempt.passage.trace.failed_over(reason)
        self._metrics.of(self._metrics.failovers, attempt.choice.name, reason).inc()
