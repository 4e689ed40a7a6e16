"""Delivery: passes a replica's answer to the client, and says what it tells of the replica."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from router.config import ObserveOptions
from router.fleet.load import Lease
from router.fleet.replica import Replica
from router.gateway.answer import BodyAnswer, EventAnswer, Filter
from router.gateway.headers import as_fields, own_headers, towards_client
from router.gateway.timing import prefill_seconds
from router.gateway.usage import AnswerReader
from router.gateway.walk import Attempt
from router.http.exchange import Exchange
from router.http.failures import Stalled, Stopped, UpstreamError
from router.http.headers import Field
from router.observe.outcome import Outcome
from router.observe.witness import Witness
from router.placement.view import FleetView
from router.wire.errors import TURNED_AWAY, ApiError, Source


class Delivery:
    """Delivers answers. The witness is told of each that a replica accepted."""

    def __init__(self, witness: Witness, policy_name: str, observe: ObserveOptions) -> None:
        self._witness = witness
        self._policy_name = policy_name
        self._observe = observe

    async def stream(self, attempt: Attempt, exchange: Exchange, through: Filter | None) -> EventAnswer:
        """Pass a stream of events on; where it broke off, others may go on with it."""
        passage = attempt.passage
        self._accepted(attempt, exchange)
        prepared = passage.prepared
        answer = EventAnswer(
            passage.reply,
            prepared.choices,
            prepared.usage_asked,
            self._hearing(attempt),
            through,
            len(prepared.raw),
        )
        with _watched(attempt, exchange):
            answer.begin(exchange, self._fields(attempt, exchange))
            await answer.over
        self._judge(attempt, answer.reader, answer.broken)
        return answer

    async def go_on(
        self, attempt: Attempt, exchange: Exchange, answer: EventAnswer, through: Filter, fleet: FleetView
    ) -> None:
        """Let another replica go on with a stream, which was chosen by this view of the fleet."""
        outcome = attempt.passage.outcome
        outcome.result = "ok"
        outcome.block_tokens = attempt.replica.block_tokens
        self._witness.taken_over(attempt.decision, fleet, attempt.choice, monotonic())
        with _watched(attempt, exchange):
            answer.go_on(exchange, self._hearing(attempt), through)
            await answer.over
        self._judge(attempt, answer.reader, answer.broken)

    def end_with(self, attempt: Attempt, answer: EventAnswer, events: list[bytes]) -> None:
        """End a stream with what is known of it without a replica."""
        outcome = attempt.passage.outcome
        answer.close_with(events)
        outcome.result = "ok"
        _read(answer.reader, outcome)

    async def body(self, attempt: Attempt, exchange: Exchange) -> None:
        """Pass any other answer on; ApiError where it broke off before anything was sent."""
        passage = attempt.passage
        self._accepted(attempt, exchange)
        answer = BodyAnswer(exchange, passage.reply, self._fields(attempt, exchange), self._hearing(attempt))
        answer.begin()
        await answer.over
        if answer.broken is not None and not passage.reply.started:
            attempt.replica.health.answer_failed(monotonic())
            raise ApiError(
                502, "the replica broke off its answer", source=Source.REPLICA, tried=True
            ) from answer.broken
        self._judge(attempt, answer.reader, answer.broken)

    def _hearing(self, attempt: Attempt) -> Callable[[], None]:
        """Return what is called with each piece of an answer."""
        health, began = attempt.replica.health, False

        def heard() -> None:
            nonlocal began
            health.heard_at = now = monotonic()
            if not began:
                began = True
                self._began(attempt, now)

        return heard

    def _judge(self, attempt: Attempt, reader: AnswerReader, broken: UpstreamError | None) -> None:
        """Say how an answer ended, and what that tells of its replica."""
        outcome, replica = attempt.passage.outcome, attempt.replica
        _read(reader, outcome)
        status = outcome.status
        if broken is not None:
            outcome.result = "broken_off"
            if not isinstance(broken, Stopped | Stalled):
                replica.health.answer_failed(monotonic())
        elif status >= 500 and status not in TURNED_AWAY:
            outcome.result = "replica_error"
            replica.health.answer_failed(monotonic())
        elif status >= 400:
            outcome.result = "turned_away" if status in TURNED_AWAY else "client_error"
        elif reader.failed:
            outcome.result = "replica_error"
        else:
            replica.health.answer_succeeded()
            replica.load.served(attempt.lease, monotonic())
            if attempt.passage.prepared.choices == 1 and status == 200 and outcome.attempts == 1:
                _teach(replica, reader, attempt.lease, outcome)

    def _accepted(self, attempt: Attempt, exchange: Exchange) -> None:
        outcome = attempt.passage.outcome
        outcome.status = exchange.status
        outcome.streamed = exchange.content_type == b"text/event-stream"
        outcome.block_tokens = attempt.replica.block_tokens
        if exchange.status >= 400:
            # Answered, and not well: no word on how fast it is.
            attempt.replica.stall.ended(attempt.lease)
        else:
            self._witness.accepted(attempt.decision, attempt.choice, monotonic())

    def _began(self, attempt: Attempt, now: float) -> None:
        """Take in the first byte that came of this attempt."""
        passage = attempt.passage
        replica, outcome = attempt.replica, passage.outcome
        replica.load.began(attempt.lease)
        if outcome.status == 200:
            replica.stall.began(attempt.lease, now)
        # Of who goes on with a stream, too: it has computed the prompt as well.
        self._witness.began(attempt.decision, now)
        if outcome.first_byte_seconds is None:
            passage.trace.began()
            passage.end_turn()
            outcome.first_byte_seconds = now - outcome.arrived_at
            if outcome.streamed:
                passage.prepared.ask.forget_text()

    def _fields(self, attempt: Attempt, exchange: Exchange) -> list[Field]:
        passage = attempt.passage
        outcome = passage.outcome
        told = self._observe.response_headers
        own = own_headers(outcome.request_id, attempt.choice, self._policy_name, passage.prepared.tier, told)
        fields = [*towards_client(exchange.headers), *as_fields(own)]
        if outcome.attempts > 1 and outcome.status in TURNED_AWAY:
            # Others were asked already: the client should not multiply that.
            fields = [field for field in fields if field[0] != b"x-should-retry"]
            fields.append((b"x-should-retry", b"false"))
        return fields


@contextmanager
def _watched(attempt: Attempt, exchange: Exchange) -> Iterator[None]:
    """Break a stream off where its replica is found hung: another may go on with it."""

    def hung() -> None:
        exchange.break_off(Stalled("the replica does not move any more"))

    attempt.replica.stall.watchers.add(hung)
    try:
        yield
    finally:
        # Whoever was told has been taken out already.
        attempt.replica.stall.watchers.discard(hung)


def _teach(replica: Replica, reader: AnswerReader, lease: Lease, outcome: Outcome) -> None:
    """Let the fleet learn what this prefill took. Hits that are not told are taken as expected."""
    first = outcome.first_byte_seconds
    first_byte_at = outcome.arrived_at + first if outcome.streamed and first is not None else None
    seconds = prefill_seconds(reader, lease, replica.state is not None, first_byte_at)
    if seconds is not None:
        hit = outcome.expected_tokens if outcome.hit_tokens is None else outcome.hit_tokens
        replica.computed(outcome.prompt_tokens, min(hit, outcome.prompt_tokens), seconds)


def _read(reader: AnswerReader, outcome: Outcome) -> None:
    if reader.prompt_tokens is not None:
        outcome.prompt_tokens = reader.prompt_tokens
    outcome.output_tokens = reader.output_tokens
    outcome.evicted_tokens = reader.evicted_tokens
    if reader.cached_tokens is not None:
        # Never more than the prompt, or what was not hit would not add up.
        outcome.hit_tokens = min(reader.cached_tokens, outcome.prompt_tokens)
