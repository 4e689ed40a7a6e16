"""The relay: walks down a ranking until a replica answers, and has that answer delivered."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from router.config import LimitOptions, ObserveOptions
from router.fleet.fleet import Fleet
from router.fleet.replica import Replica
from router.gateway.budget import RetryBudget
from router.gateway.delivery import Delivery
from router.gateway.headers import towards_replica
from router.gateway.passage import Passage
from router.gateway.prepare import Prepared
from router.gateway.walk import Attempt, Walk
from router.http.exchange import Exchange
from router.http.failures import Refused, Stopped, UpstreamError, Vanished
from router.http.origin import Origin
from router.http.pool import Pool
from router.observe.metrics import RouterMetrics
from router.observe.witness import Decision, Witness
from router.placement.ask import Choice
from router.wire.errors import RAN_HEADER, TURNED_AWAY
from router.wire.report import ORCA_HEADER, LoadReport

_ORCA = ORCA_HEADER.encode()
_RAN = RAN_HEADER.encode()


class Relay:
    """Dispatches requests."""

    def __init__(
        self,
        fleet: Fleet,
        pool: Pool,
        witness: Witness,
        policy_name: str,
        limits: LimitOptions,
        observe: ObserveOptions,
        metrics: RouterMetrics,
        keep_keys: bool,
    ) -> None:
        """`keep_keys` says that clients' API keys are for the replicas, since the router asks for none."""
        self._fleet = fleet
        self._pool = pool
        self._limits = limits
        self._metrics = metrics
        self._keep_keys = keep_keys
        self._budget = RetryBudget(limits)
        self._delivery = Delivery(witness, policy_name, observe)

    async def run(self, passage: Passage) -> None:
        """Answer the request; ApiError where no replica does, Unreached where none could be connected to."""
        decision = passage.decision
        assert decision is not None
        ranking = decision.ranking
        self._budget.earn()
        walk = Walk(min(self._limits.attempts, len(ranking)))
        while walk.to_try:
            choice = ranking[walk.next()]
            replica = self._fleet.by_name(choice.name)
            if replica is None:
                continue
            attempt, context = self._begin(passage, decision, choice, replica)
            origin = self._pool.origin(replica.url)
            try:
                parts, size = self._written(passage, origin, context)
                exchange = await self._pool.send(origin, parts, size, walk.fresh)
                try:
                    if not self._turned_away(attempt, exchange, walk):
                        return await self._pass_on(attempt, exchange)
                finally:
                    # Wholly read, the connection is back in the pool already; else nobody wants the rest.
                    exchange.close()
            except UpstreamError as error:
                await self._failed(attempt, error, walk, origin)
            finally:
                replica.load.close(attempt.lease)
        raise walk.end(passage.outcome) from walk.error

    def _begin(
        self, passage: Passage, decision: Decision, choice: Choice, replica: Replica
    ) -> tuple[Attempt, Mapping[str, str] | None]:
        """Count the request on a replica; return the attempt, and the trace context to send with it."""
        outcome = passage.outcome
        outcome.attempts += 1
        outcome.replica, outcome.reason = choice.name, choice.reason
        outcome.expected_tokens = choice.expected_tokens
        context = None
        if passage.trace.recorded:
            client = passage.request.headers
            context = {name: client[name] for name in ("traceparent", "tracestate") if name in client}
            passage.trace.sending(choice, outcome.attempts, context)
        lease = replica.load.open(choice.prefill_seconds, monotonic(), outcome.prompt_tokens)
        return Attempt(passage, decision, choice, replica, lease), context

    def _written(
        self, passage: Passage, origin: Origin, context: Mapping[str, str] | None
    ) -> tuple[list[bytes | memoryview], int]:
        """Return the request as it is sent, in parts, and its size; the body is not copied."""
        request = passage.request
        common = passage.common_headers
        if not common or context is not None:
            common = towards_replica(request, passage.outcome.request_id, self._keep_keys, context)
            passage.common_headers = common
        body, size = _body(passage.prepared)
        head = b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            request.target,
            origin.authority,
            size,
            common,
        )
        return [head, *body], len(head) + size

    def _turned_away(self, attempt: Attempt, exchange: Exchange, walk: Walk) -> bool:
        """Take in that there is an answer; say whether it is only that another should be asked."""
        fields = exchange.headers.bytes
        orca = fields.get(_ORCA)
        report = LoadReport.from_orca(orca.decode("latin-1")) if orca is not None else None
        attempt.replica.load.answered(attempt.lease, report, monotonic())
        walk.untouched = False
        if exchange.status not in TURNED_AWAY or not walk.to_try:
            return False
        ran = _RAN in fields
        if (ran and walk.ran_once) or not self._budget.spend():
            return False
        walk.ran_once = walk.ran_once or ran
        self._note_failover(attempt, str(exchange.status))
        return True

    async def _failed(self, attempt: Attempt, error: UpstreamError, walk: Walk, origin: Origin) -> None:
        """Take in that there is no answer; ApiError where no other may be asked."""
        walk.error = error
        health = attempt.replica.health
        if isinstance(error, Refused):
            health.unreachable()
            attempt.decision.not_reached(attempt.choice.name)
            if walk.fresh:
                # It was there a moment ago: what it may have begun has ended with it.
                walk.ran_once = True
            self._note_failover(attempt, "refused")
            return
        walk.untouched = False
        if isinstance(error, Vanished):
            if error.stale and not walk.fresh:
                # Only the idle connection was closed: the same replica, on a new one.
                walk.once_more()
                self._note_failover(attempt, "stale")
                return
            if await self._pool.is_gone(origin):
                health.unreachable()
                attempt.decision.not_reached(attempt.choice.name)
                if not walk.ran_once:
                    # Its process has ended, and with it what it may have begun: nobody computes this now.
                    walk.ran_once = True
                    self._note_failover(attempt, "gone")
                    return
            else:
                health.answer_failed(monotonic())
        elif not isinstance(error, Stopped):
            health.answer_failed(monotonic())
        raise walk.end(attempt.passage.outcome) from error

    async def _pass_on(self, attempt: Attempt, exchange: Exchange) -> None:
        readable = b"content-encoding" not in exchange.headers.bytes
        if not (readable and exchange.status == 200 and exchange.content_type == b"text/event-stream"):
            await self._delivery.body(attempt, exchange)
            return
        answer = await self._delivery.stream(attempt, exchange, None)
        if answer.broken is not None:
            answer.give_up()
        self._delivery.judge(attempt, answer.reader, answer.broken is not None)

    def _note_failover(self, attempt: Attempt, reason: str) -> None:
        attempt.passage.trace.failed_over(reason)
        self._metrics.of(self._metrics.failovers, attempt.choice.name, reason).inc()


def _body(prepared: Prepared) -> tuple[list[bytes | memoryview], int]:
    """Return a body as it is sent, in parts, and its length."""
    if not hasattr(prepared, "raw"):  # TEMPORARY
        return [prepared.body], len(prepared.body)
    raw, inserted = prepared.raw, prepared.inserted
    if not inserted:
        return [raw], len(raw)
    view = memoryview(raw)
    opening = prepared.opening
    return [view[:opening], inserted, view[opening:]], len(raw) + len(inserted)
