"""Dispatch: sends a request to one replica, with a lease on it for as long as it is answered there."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from router.engines.journal import Journal
from router.fleet.replica import Replica
from router.gateway.headers import towards_replica
from router.gateway.passage import Passage
from router.gateway.prepare import Prepared
from router.gateway.walk import Attempt
from router.http.exchange import Exchange
from router.http.failures import Exhausted, Refused, Stopped, UpstreamError, Vanished
from router.http.pool import Pool
from router.observe.witness import Decision
from router.placement.ask import Choice
from router.wire.report import ORCA_HEADER, LoadReport

Parts = list[bytes | memoryview]

_ORCA = ORCA_HEADER.encode()


class Dispatch:
    """Sends requests."""

    def __init__(self, pool: Pool, keep_keys: bool) -> None:
        """`keep_keys` says that clients' API keys are for the replicas, since the router asks for none."""
        self._pool = pool
        self._keep_keys = keep_keys

    def attempt(self, passage: Passage, decision: Decision, choice: Choice, replica: Replica) -> Attempt:
        """Count the request on a replica, until the attempt ends."""
        outcome = passage.outcome
        outcome.attempts += 1
        outcome.replica, outcome.reason = choice.name, choice.reason
        outcome.expected_tokens = choice.expected_tokens
        now = monotonic()
        lease = replica.load.open(choice.prefill_seconds, now, outcome.prompt_tokens)
        replica.stall.sent(lease, choice.wait_seconds, choice.prefill_seconds, now, passage.prepared.streamed)
        return Attempt(passage, decision, choice, replica, lease)

    async def send(
        self, attempt: Attempt, path: bytes, body: Parts, size: int, fresh: bool = False
    ) -> Exchange:
        """Send a body of `size` bytes to the replica; return its answer, or raise UpstreamError."""
        passage, origin = attempt.passage, self._pool.origin(attempt.replica.url)
        head = b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            path,
            origin.authority,
            size,
            self._common_headers(passage, attempt.choice),
        )
        exchange = await self._pool.send(origin, [head, *body], len(head) + size, fresh)
        orca = exchange.headers.bytes.get(_ORCA)
        report = LoadReport.from_orca(orca.decode("latin-1")) if orca is not None else None
        attempt.replica.load.answered(attempt.lease, report, monotonic())
        return exchange

    async def judge(self, attempt: Attempt, error: UpstreamError) -> bool:
        """Hold a failure against its replica, where it is its own; say whether nothing runs there now."""
        replica = attempt.replica
        if isinstance(error, Refused) or (
            # Where nobody listens any more, whatever ran there has ended.
            isinstance(error, Vanished) and await self._pool.is_gone(self._pool.origin(replica.url))
        ):
            replica.health.unreachable()
            attempt.decision.not_reached(attempt.choice.name)
            return True
        if not isinstance(error, Stopped | Exhausted):
            replica.health.answer_failed(monotonic())
        return False

    def _common_headers(self, passage: Passage, choice: Choice) -> bytes:
        """Return what goes to every replica that is tried."""
        request, outcome, trace = passage.request, passage.outcome, passage.trace
        context: dict[str, str] | None = None
        if trace.recorded:
            client = request.headers
            context = {name: client[name] for name in ("traceparent", "tracestate") if name in client}
            trace.sending(choice, outcome.attempts, context)
        if not passage.common_headers or context is not None:
            passage.common_headers = towards_replica(request, outcome.request_id, self._keep_keys, context)
        return passage.common_headers


def body_of(prepared: Prepared, journal: Journal | None) -> tuple[Parts, int]:
    """Return a client's body as it is sent, in parts that copy nothing, and its length."""
    raw = prepared.raw
    inserted = prepared.inserted + journal.asks if journal is not None else prepared.inserted
    if not inserted:
        return [raw], len(raw)
    view, opening = memoryview(raw), prepared.opening
    return [view[:opening], inserted, view[opening:]], len(raw) + len(inserted)


def size_of(parts: Sequence[bytes]) -> int:
    """Return the length of a body in parts."""
    return sum(map(len, parts))
