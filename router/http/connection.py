"""One client's connection: bytes in, requests out, one reply after the other. Strict about their ends."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from time import monotonic
from typing import cast

import httptools

from router.config import LimitOptions
from router.http.headers import Headers
from router.http.reply import Reply
from router.http.request import Request, inflated, too_large
from router.wire.errors import ApiError

log = logging.getLogger("kvring.http")

Handler = Callable[[Request, Reply], Awaitable[None]]

# Above this a reply's source is paused until the client has read all but a quarter.
_UNREAD_BYTES = 64 * 1024
# Requests sent ahead of their turn: few clients do so at all.
_MOST_AHEAD = 64
# How long a client that was refused in mid-request may go on sending: closed at once, it would not see why.
_LINGER_SECONDS = 2.0


class Connection(asyncio.BufferedProtocol):
    """Serves one client. `room` is where bytes are read to, shared by all connections of a server."""

    def __init__(
        self,
        handler: Handler,
        limits: Callable[[], LimitOptions],
        room: memoryview,
        here: set[Connection],
    ) -> None:
        """`here` are the connections of the server: this one is among them while it is open."""
        self._handler = handler
        self._limits = limits
        self._room = room
        self._here = here
        self._parser = httptools.HttpRequestParser(self)
        self._transport = cast(asyncio.Transport, None)
        self._remote: str | None = None
        # The message that comes in.
        self._in_head = False
        self._head_bytes = 0
        self._read_bytes = 0
        self._target = b""
        self._headers = Headers()
        self._request: Request | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        # Those behind it, and the one being served.
        self._ahead: deque[Request] = deque()
        self._reply: Reply | None = None
        self._task: asyncio.Task[None] | None = None
        self._keep_alive = True
        self._lingering = False
        self._paused = False
        self._unread = 0
        # When something must have happened (monotonic); who serves a request is under limits of its own.
        self._deadline = inf

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNREAD_BYTES)
        peer = self._transport.get_extra_info("peername")
        self._remote = peer[0] if isinstance(peer, tuple) else None
        self._deadline = monotonic() + self._limits().idle_client_seconds
        self._here.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Whoever is being served has left."""
        self._here.discard(self)
        self._ahead.clear()
        self._resume_source()
        if self._task is not None:
            self._task.cancel()

    def eof_received(self) -> bool:
        """Close: a client that sends no more is taken to have left."""
        return False

    def pause_writing(self) -> None:
        """The client does not read: whoever sends to it waits."""
        self._paused = True
        self._await_reading()
        if self._reply is not None and self._reply.source is not None:
            self._reply.source.pause()

    def resume_writing(self) -> None:
        """The client has read."""
        self._paused = False
        if not self._transport.is_closing():
            self._deadline = inf if self._reply is not None else self._idle_until()
        self._resume_source()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read to; it is taken in before anybody else reads."""
        return self._room

    def buffer_updated(self, count: int) -> None:
        """Take in what was read."""
        if self._lingering:
            return
        self._read_bytes = count
        try:
            self._parser.feed_data(self._room[:count])
        except httptools.HttpParserUpgrade as upgrade:
            # Another protocol was offered and is not taken up: what follows is HTTP/1.1 still.
            rest = bytes(self._room[upgrade.args[0] : count])
            self._parser = httptools.HttpRequestParser(self)
            if rest and not self._lingering:
                self._feed_again(rest)
        except httptools.HttpParserCallbackError:
            log.exception("a fault while reading a request")
            self._transport.abort()
        except httptools.HttpParserError as error:
            self._refuse_unreadable(error)
        if self._in_head and not self._lingering:
            self._head_bytes += count
            if self._head_bytes > self._limits().header_bytes:
                self._in_head = False
                self._refuse(_headers_too_large())

    def _feed_again(self, rest: bytes) -> None:
        try:
            self._parser.feed_data(rest)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._refuse_unreadable(error)

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head = True
        self._head_bytes = 0
        self._target = b""
        self._headers = Headers()
        self._request = None
        if self._reply is None:
            self._deadline = monotonic() + self._limits().header_seconds

    def on_url(self, piece: bytes) -> None:
        """Take a piece of the target."""
        self._target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or, behind chunks, a trailer, which nobody needs."""
        if self._in_head:
            self._headers.add(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole: look at it before its body comes."""
        self._in_head = False
        parser, headers, limits = self._parser, self._headers, self._limits()
        request = Request(parser.get_method().decode("ascii"), self._target, headers, self._remote)
        request.keep_alive = parser.should_keep_alive()
        request.http_1_0 = parser.get_http_version() == "1.0"
        self._request = request
        self._body = []
        self._body_bytes = 0
        refusal = _framing_fault(headers, request.http_1_0) or _too_long(headers, limits.body_bytes)
        if self._head_bytes + self._read_bytes > limits.header_bytes and self._size() > limits.header_bytes:
            refusal = _headers_too_large()
        if refusal is not None:
            self._refuse(refusal)
            return
        if b"content-length" in headers.bytes or b"transfer-encoding" in headers.bytes:
            if self._reply is None:
                self._deadline = monotonic() + limits.body_seconds
            if headers.bytes.get(b"expect", b"").lower() == b"100-continue" and self._reply is None:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        if self._lingering:
            return
        self._body.append(piece)
        self._body_bytes += len(piece)
        if self._body_bytes > self._limits().body_bytes:
            self._body = []
            self._refuse(too_large(self._limits().body_bytes))

    def on_message_complete(self) -> None:
        """The request is whole."""
        request = self._request
        if request is None or self._lingering:
            return
        self._request = None
        body = self._body
        self._body = []
        request.body = body[0] if len(body) == 1 else b"".join(body)
        encoding = request.headers.bytes.get(b"content-encoding")
        if encoding is not None:
            try:
                request.body = inflated(request.body, encoding, self._limits().body_bytes)
            except ApiError as error:
                request.refusal = error
        self._take(request)

    def _size(self) -> int:
        return len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers.fields)

    # Serving.

    def _take(self, request: Request) -> None:
        if self._reply is None:
            self._serve(request)
            return
        self._ahead.append(request)
        if len(self._ahead) >= _MOST_AHEAD:
            # Those that came are served; a client that does not wait for answers has to begin anew.
            request.keep_alive = False
            self._lingering = True

    def _serve(self, request: Request) -> None:
        self._deadline = inf
        self._reply = reply = Reply(
            self, request.keep_alive and self._keep_alive, request.http_1_0, request.method == "HEAD"
        )
        self._task = asyncio.get_running_loop().create_task(self._run(request, reply))

    async def _run(self, request: Request, reply: Reply) -> None:
        try:
            await self._handler(request, reply)
        except Exception:
            log.exception("a fault while answering %s", request.method)
        finally:
            self._task = None
            if not reply.ended:
                reply.break_off()
            self._served(reply)

    def _served(self, reply: Reply) -> None:
        self._reply = None
        if self._transport.is_closing():
            return
        if self._ahead and reply.keep_alive:
            self._serve(self._ahead.popleft())
        elif self._lingering:
            self._linger()
        elif not reply.keep_alive:
            self._close()
        elif self._paused:
            # What is left to send is sent within the limit of pause_writing.
            pass
        else:
            self._deadline = self._idle_until()

    def _refuse(self, refusal: ApiError) -> None:
        """Answer a request that cannot be read on; then the connection ends."""
        request = self._request or Request("GET", b"", self._headers, self._remote)
        request.refusal = refusal
        request.keep_alive = False
        self._request = None
        self._lingering = True
        self._take(request)

    def _refuse_unreadable(self, error: Exception) -> None:
        if self._lingering:
            return
        # The parser quotes what it choked on: its first line says what is wrong, without the quote.
        reason = str(error).strip().split("\n", 1)[0].rstrip(":")
        self._in_head = False
        self._refuse(ApiError(400, f"the request cannot be read: {reason[:200]}"))

    def _linger(self) -> None:
        """Let the client read why, and end its sending."""
        self._deadline = monotonic() + _LINGER_SECONDS
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _resume_source(self) -> None:
        if self._reply is not None and self._reply.source is not None:
            self._reply.source.resume()

    # What replies and the server call.

    def write(self, data: bytes) -> None:
        """Send bytes of the reply; to a client that left, nothing is sent."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def break_off(self) -> None:
        """Close behind what was sent."""
        self._keep_alive = False
        self._close()

    @property
    def paused(self) -> bool:
        """Whether the client does not read."""
        return self._paused

    def retire(self) -> None:
        """Serve what has begun, and nothing else."""
        self._keep_alive = False
        if self._reply is not None:
            self._reply.keep_alive = self._reply.keep_alive and self._reply.started
        elif not self._in_head and self._request is None:
            self._transport.close()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def look(self, now: float) -> None:
        """Hold the limits of time."""
        if now < self._deadline:
            return
        if self._paused or self._transport.is_closing():
            if self._transport.get_write_buffer_size() < self._unread:
                # Slow, but it reads.
                self._await_reading()
            else:
                self._transport.abort()
        elif self._lingering or self._reply is not None:
            self._transport.abort()
        elif self._request is not None:
            self._refuse(ApiError(408, f"the body did not arrive within {self._limits().body_seconds:g} s"))
        elif self._in_head:
            self._in_head = False
            self._refuse(ApiError(408, "the request's headers did not arrive in time"))
        else:
            self._close()

    def _close(self) -> None:
        """Close once all that was written has been read; within the limit for that."""
        self._await_reading()
        self._transport.close()

    def _await_reading(self) -> None:
        self._unread = self._transport.get_write_buffer_size()
        self._deadline = monotonic() + self._limits().write_seconds

    def _idle_until(self) -> float:
        limits = self._limits()
        return monotonic() + (limits.header_seconds if self._in_head else limits.idle_client_seconds)


def _framing_fault(headers: Headers, http_1_0: bool) -> ApiError | None:
    """Say why nobody should guess where this request ends, or for whom it is: others may guess otherwise."""
    fields = headers.bytes
    coding = fields.get(b"transfer-encoding")
    if coding is not None:
        if b"content-length" in fields:
            return ApiError(400, "a request has a Content-Length or a Transfer-Encoding, not both")
        if coding.strip().lower() != b"chunked" or headers.count(b"transfer-encoding") > 1:
            return ApiError(501, "the only Transfer-Encoding that is understood is chunked")
        if http_1_0:
            return ApiError(400, "HTTP/1.0 knows no Transfer-Encoding")
    elif b"content-length" in fields and headers.count(b"content-length") > 1:
        return ApiError(400, "a request has one Content-Length")
    if headers.count(b"host") > 1 or (b"host" not in fields and not http_1_0):
        return ApiError(400, "a request has one Host")
    if b"expect" in fields and fields[b"expect"].lower() != b"100-continue":
        return ApiError(417, "the only expectation that is understood is 100-continue")
    return None


def _headers_too_large() -> ApiError:
    return ApiError(431, "the request's headers are too large")


def _too_long(headers: Headers, limit_bytes: int) -> ApiError | None:
    length = headers.bytes.get(b"content-length")
    return too_large(limit_bytes) if length is not None and int(length) > limit_bytes else None
