"""One stream of an Envoy: a request's headers and body in, its destination out, the answer's headers in."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Protocol

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from router.gateway.headers import request_id_of
from router.observe.outcome import Outcome
from router.picker.course import Course
from router.picker.messages import (
    AnswerMode,
    BodyMode,
    Head,
    answered,
    destined,
    headers_of,
    passed,
    refused,
    served_by,
    wait_for_body,
)
from router.picker.parts import Parts
from router.wire.errors import ApiError, Source

log = logging.getLogger("kvring.picker")

# Beyond the longest wait for an answer, for what Envoy itself does.
_SPARE_SECONDS = 1.0


class Stream(Protocol):
    """What the exchange needs of a gRPC stream. `read` returns None at its end."""

    async def read(self) -> ProcessingRequest | None:
        """Return the next message."""

    async def write(self, message: ProcessingResponse) -> None:
        """Send a message."""


class _Ended(Exception):
    """The stream ended before the request was whole."""


class Exchange:
    """Answers one stream, whatever comes: every error is told to the client, and the lease ends with it."""

    def __init__(self, parts: Parts, stream: Stream, crowded: bool) -> None:
        """`crowded` says that there are more streams than there may be.

        Once `leaving`, it ends when an answer has begun, which then runs on without it.
        """
        self.leaving = False
        # Whether the answer has begun: the gateway needs nothing more.
        self.answering = False
        self._parts = parts
        self._serving = parts.serving()
        self._stream = stream
        self._crowded = crowded
        self._duplex = False
        self._course: Course | None = None

    async def run(self) -> None:
        """Answer until the stream ends."""
        first = await self._stream.read()
        while first is not None and first.WhichOneof("request") != "request_headers":
            # The gateway keeps requests' headers to itself: there is nothing to decide by.
            await self._stream.write(passed(first, duplex=False))
            first = await self._stream.read()
        if first is None:
            return
        head = Head.of(first)
        outcome = Outcome(
            request_id=request_id_of(head.headers),
            path=head.path,
            arrived_at=monotonic(),
            client_retry=_digits(head.headers.get("x-stainless-retry-count", "0"))[:4],
        )
        try:
            await self._exchange(head, outcome)
        except ApiError as error:
            outcome.status = error.status
            outcome.result = "client_error" if error.source is Source.CLIENT else "refused"
            await self._stream.write(refused(error, outcome.request_id))
        except _Ended:
            _cut_off(outcome)
        except asyncio.CancelledError:
            if not (self.leaving and self.answering):
                _cut_off(outcome)
                raise
            # By let_go: the stream shall end well, or the gateway might cut the answer.
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
        except Exception:
            outcome.status, outcome.result = 500, "router_error"
            raise
        finally:
            self._close(outcome)

    async def _exchange(self, head: Head, outcome: Outcome) -> None:
        if head.steering:
            self._parts.picker_metrics.spoofed.inc(len(head.steering))
        if self._crowded:
            self._parts.metrics.shed.labels("streams").inc()
            raise ApiError(
                429,
                "too many requests in flight",
                source=Source.ROUTER,
                code="overloaded",
                retry_after_seconds=1,
            )
        self._duplex = head.mode is BodyMode.DUPLEX
        kind, taken, raw = await self._intake(head)
        parts = self._parts
        pick = await parts.picker.pick(self._serving, head, raw, outcome)
        self._course = Course(pick, parts.picker, self._serving, parts.fleet, parts.metrics, outcome)
        await self._stream.write(destined(kind, pick.addresses, head))
        for message in taken:
            await self._stream.write(passed(message, self._duplex))
        await self._follow(head, outcome)

    async def _intake(self, head: Head) -> tuple[str, list[ProcessingRequest], bytes | None]:
        """Read the body.

        Returns what kind of message the destination answers, the messages that are still to be answered
        behind it, and the body, None where it is not to be had.
        """
        limits = self._serving.config.limits
        if head.whole or head.mode is BodyMode.UNREAD:
            return "request_headers", [], b"" if head.whole else None
        too_large = ApiError(
            413, f"the body is larger than {limits.body_bytes} bytes", code="request_too_large"
        )
        if int(_digits(head.headers.get("content-length", ""))) > limits.body_bytes:
            raise too_large
        if not self._duplex:
            await self._stream.write(wait_for_body(head))
        taken: list[ProcessingRequest] = []
        size, whole = 0, False
        try:
            async with asyncio.timeout(limits.body_seconds):
                while not whole:
                    message = await self._stream.read()
                    if message is None:
                        raise _Ended
                    taken.append(message)
                    size += len(message.request_body.body)
                    if size > limits.body_bytes:
                        raise too_large
                    whole = (
                        not self._duplex
                        or message.request_body.end_of_stream
                        or message.WhichOneof("request") != "request_body"
                    )
        except TimeoutError as error:
            raise ApiError(408, f"the body did not arrive within {limits.body_seconds:g} s") from error
        body = b"".join([message.request_body.body for message in taken])
        return ("request_headers", taken, body) if self._duplex else ("request_body", [], body)

    async def _follow(self, head: Head, outcome: Outcome) -> None:
        """Wait for the answer's headers, then for the end of the stream."""
        limits = self._serving.config.limits
        assert self._course is not None
        try:
            async with asyncio.timeout(limits.first_byte_seconds + _SPARE_SECONDS) as deadline:
                while (message := await self._stream.read()) is not None:
                    kind = message.WhichOneof("request")
                    if kind == "response_headers":
                        deadline.reschedule(None)
                        headers = headers_of(message.response_headers.headers)
                        status = int(_digits(headers.get(":status", "")))
                        own = self._course.answered(status, headers, served_by(message))
                        await self._stream.write(answered(headers, own, head))
                        self.answering = True
                        if self.leaving:
                            return
                        continue
                    if kind == "response_body":
                        self._parts.picker_metrics.chunks.inc()
                    await self._stream.write(passed(message, head.answer_mode is AnswerMode.DUPLEX))
        except TimeoutError:
            outcome.status, outcome.result = 504, "replica_error"
        else:
            if not outcome.status:
                _cut_off(outcome)

    def _close(self, outcome: Outcome) -> None:
        outcome.total_seconds = monotonic() - outcome.arrived_at
        if self._course is not None:
            self._course.close()
        self._serving.ledger.enter(outcome)


def _cut_off(outcome: Outcome) -> None:
    """Note the end of a stream: behind the answer's headers it is the answer's, before, the client left."""
    if not outcome.status:
        outcome.status, outcome.result = 499, "client_closed"


def _digits(text: str) -> str:
    return text[:12] if text.isascii() and text.isdigit() else "0"
