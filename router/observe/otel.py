"""Traces by OpenTelemetry's SDK, sent as OTLP over HTTP. Imported only where they are on.

A thread of the SDK sends them from a bounded queue: where nobody takes them they are dropped, and requests
notice nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from os import urandom
from time import time_ns
from urllib.parse import urlsplit

from opentelemetry import context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace.span import TraceState

from router.config import TraceOptions
from router.observe import names
from router.observe.fingerprint import release
from router.observe.outcome import Outcome
from router.observe.tracing import TRACEPARENT, TRACESTATE, Parent, Trace, Tracing
from router.placement.ask import Choice, Ranking

log = logging.getLogger("kvring.traces")

_PATH = "/v1/traces"
# Some seconds of spans of a busy router, 2 kB each; more are dropped.
_QUEUED_SPANS = 8192
_BATCH_SPANS = 512
_BATCH_SECONDS = 2.0
_SEND_SECONDS = 5.0
# Less than what is left to a router between its drain and the end of its grace.
_CLOSE_SECONDS = 3.0
_LONGEST_TEXT = 256
_LONGEST_MODEL = 128
_INTERNAL_ERROR = 500


class OtelTracing(Tracing):
    """Records the requests that their callers recorded, and a share of those that bring no context."""

    def __init__(self, options: TraceOptions) -> None:
        self._ratio = options.sample_ratio
        told = urlsplit(options.endpoint)
        endpoint = options.endpoint if told.path.strip("/") else options.endpoint.rstrip("/") + _PATH
        # It logs each failed sending, with all that it was told: one line when that begins is enough.
        logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.CRITICAL)
        # It warns of each tracestate that it drops, in the client's own words.
        logging.getLogger(TraceState.__module__).setLevel(logging.CRITICAL)
        exporter = _Exporter(OTLPSpanExporter(endpoint=endpoint, timeout=_SEND_SECONDS))
        self._processor = BatchSpanProcessor(
            exporter,
            max_queue_size=_QUEUED_SPANS,
            max_export_batch_size=_BATCH_SPANS,
            schedule_delay_millis=_BATCH_SECONDS * 1000,
        )
        about = {SERVICE_NAME: options.service_name, SERVICE_VERSION: release()}
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(about),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_span_attribute_length=_LONGEST_TEXT),
        )
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("kvring")

    def begin(self, headers: Mapping[str, str], path: str, request_id: str) -> Trace:
        """Begin a trace: recorded if the caller's is, else by chance."""
        parent = Parent.of(headers)
        if parent is None:
            if random.random() >= self._ratio:
                return _Unsampled()
        elif not parent.sampled:
            # The caller's context passes as it came.
            return Trace(parent.trace_id)
        around = _context_of(parent, headers) if parent else context.Context()
        return _Recorded(self._tracer, around, path, request_id)

    async def close(self) -> None:
        """Send what is queued; what could not be sent within a few seconds is lost."""
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def shut() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]
            with suppress(RuntimeError):
                # Who waited may be gone by now, and the loop with it.
                loop.call_soon_threadsafe(done.set)

        # A thread that nobody waits for: a collector that hangs must not keep the process.
        threading.Thread(target=shut, name="traces-close", daemon=True).start()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await done.wait()
        except TimeoutError:
            log.warning("the last traces could not be sent within %g s", _CLOSE_SECONDS)


class _Exporter(SpanExporter):
    """Sends spans; says once when that begins to fail, and once when it works again."""

    def __init__(self, sender: SpanExporter) -> None:
        self._sender = sender
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._sender.export(spans)
        except Exception as error:
            self._note(True, type(error).__name__)
            return SpanExportResult.FAILURE
        self._note(result is not SpanExportResult.SUCCESS, "not taken")
        return result

    def shutdown(self) -> None:
        self._sender.shutdown()

    def _note(self, failing: bool, why: str) -> None:
        if failing and not self._failing:
            log.warning("traces cannot be sent (%s); they are dropped until they can", why)
        elif self._failing and not failing:
            log.info("traces are sent again")
        self._failing = failing


class _Unsampled(Trace):
    """A request that is not recorded, which the replica is told, so that it records none either."""

    recorded = True

    def __init__(self) -> None:
        self._ids = urandom(24).hex()
        super().__init__(self._ids[:32])

    def sending(self, choice: Choice, attempt: int, headers: MutableMapping[str, str]) -> None:
        headers[TRACEPARENT] = f"00-{self._ids[:32]}-{self._ids[32:]}-00"
        # Without a valid traceparent, it says nothing.
        headers.pop(TRACESTATE, None)


class _Recorded(Trace):
    """A request that is recorded: one span for all of it, and one child at a time for what it is doing."""

    recorded = True

    def __init__(self, tracer: Tracer, around: context.Context, path: str, request_id: str) -> None:
        self._tracer = tracer
        operation = names.OPERATIONS.get(path, path)
        self._operation = operation
        self._orphan = not around
        self._span = tracer.start_span(
            operation,
            around,
            SpanKind.SERVER,
            {
                names.OPERATION: operation,
                names.PROVIDER: "kvring",
                names.METHOD: "POST",
                names.ROUTE: path,
                names.REQUEST_ID: request_id,
            },
        )
        self._around = set_span_in_context(self._span, context.Context())
        self._step: Span | None = None
        self._deciding_at = time_ns()
        super().__init__(f"{self._span.get_span_context().trace_id:032x}")

    def deciding(self) -> None:
        self._deciding_at = time_ns()

    def queued(self) -> None:
        # Who waits tries again whenever the fleet changes: that is one wait.
        if self._step is None:
            self._step = self._tracer.start_span(names.QUEUE_SPAN, self._around, start_time=self._deciding_at)

    def decided(self, ranking: Ranking, policy: str) -> None:
        self._end_step(self._deciding_at)
        first = ranking[0]
        told: dict[str, str | int | float] = {
            names.POLICY: policy,
            names.REPLICA: first.name,
            names.REASON: first.reason,
            names.EXPECTED_TOKENS: first.expected_tokens,
            names.WAIT_SECONDS: first.wait_seconds,
            names.PREFILL_SECONDS: first.prefill_seconds,
            names.REPLICAS: len(ranking),
        }
        if len(ranking) > 1:
            told[names.RUNNER_UP] = ranking[1].name
        at = self._deciding_at
        self._tracer.start_span(names.DECISION_SPAN, self._around, attributes=told, start_time=at).end()

    def sending(self, choice: Choice, attempt: int, headers: MutableMapping[str, str]) -> None:
        step = self._next(names.FIRST_BYTE_SPAN, SpanKind.CLIENT)
        step.set_attribute(names.REPLICA, choice.name)
        step.set_attribute(names.ATTEMPT, attempt)
        own = step.get_span_context()
        headers[TRACEPARENT] = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
        if self._orphan:
            headers.pop(TRACESTATE, None)

    def failed_over(self, reason: str) -> None:
        if self._step is not None:
            self._step.set_attribute(names.FAILOVER_REASON, reason)
            self._step.set_attribute(names.ERROR_TYPE, reason)
            self._step.set_status(Status(StatusCode.ERROR))
            self._end_step()

    def began(self) -> None:
        self._next(names.STREAM_SPAN)

    def ended(self, outcome: Outcome) -> None:
        failed = outcome.status >= _INTERNAL_ERROR or outcome.result == "broken_off"
        if outcome.result != "ok":
            self._fail(self._step, outcome, failed)
            self._fail(self._span, outcome, failed)
        self._end_step()
        span = self._span
        model = outcome.model[:_LONGEST_MODEL]
        if model:
            span.update_name(f"{self._operation} {model}")
        span.set_attributes(_told(outcome))
        span.end()

    def _fail(self, span: Span | None, outcome: Outcome, failed: bool) -> None:
        if span is not None:
            span.set_attribute(names.ERROR_TYPE, outcome.result)
            if failed:
                span.set_status(Status(StatusCode.ERROR))

    def _next(self, name: str, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        self._end_step()
        self._step = self._tracer.start_span(name, self._around, kind)
        return self._step

    def _end_step(self, at: int | None = None) -> None:
        if self._step is not None:
            self._step.end(at)
            self._step = None


def _context_of(parent: Parent, headers: Mapping[str, str]) -> context.Context:
    state = headers.get(TRACESTATE)
    remote = SpanContext(
        int(parent.trace_id, 16),
        int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
        trace_state=TraceState.from_header([state]) if state else TraceState(),
    )
    return set_span_in_context(NonRecordingSpan(remote), context.Context())


def _told(outcome: Outcome) -> dict[str, str | int | float]:
    """Return what is known of a request, never its text."""
    known: dict[str, str | int | float | None] = {
        names.REQUEST_MODEL: outcome.model[:_LONGEST_MODEL] or None,
        names.REQUEST_STREAM: outcome.streamed,
        names.STATUS_CODE: outcome.status or None,
        names.RESULT: outcome.result,
        names.TIER: outcome.tier,
        names.TURN: outcome.turn or None,
        names.ATTEMPTS: outcome.attempts,
        names.REPLICA: outcome.replica or None,
        names.EXPECTED_TOKENS: outcome.expected_tokens,
        names.INPUT_TOKENS: outcome.prompt_tokens or None,
        names.OUTPUT_TOKENS: outcome.output_tokens,
        names.CACHED_TOKENS: outcome.hit_tokens,
        names.TIME_TO_FIRST_CHUNK: outcome.first_byte_seconds if outcome.streamed else None,
    }
    told = {name: value for name, value in known.items() if value is not None}
    for cause, tokens in outcome.misses or ():
        if tokens:
            told[names.UNCACHED + cause.value] = tokens
    return told
