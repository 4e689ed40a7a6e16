"""One client's connection: bytes in, requests out, one reply after the other. Strict about their ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import cast

import httptools

from router.config import LimitOptions
from router.http.framing import body_alone, headers_too_large, read_head, unreadable
from router.http.headers import Headers
from router.http.reply import Admit, Handler, Reply
from router.http.request import Request, too_large
from router.wire.errors import ApiError

log = logging.getLogger("kvring.http")

# Above this a reply's source is paused until the client has read all but a quarter.
_UNREAD_BYTES = 64 * 1024
# Requests sent ahead of their turn, and what is kept of them: few clients do so at all.
_MOST_AHEAD = 64
_MOST_AHEAD_BYTES = 256 * 1024
# More pieces of a body than this are joined.
_MOST_PIECES = 64
# How long a client that was refused in mid-request may go on sending: closed at once, it would not see why.
_LINGER_SECONDS = 2.0
# What the connection has between requests: those of the last would be kept for as long as it idles.
_NO_HEADERS = Headers()


class Connection(asyncio.BufferedProtocol):
    """Serves one client. `room` is where bytes are read to, shared by all connections of a server."""

    # Most connections idle, and there are many.
    __slots__ = (
        "_admit",
        "_ahead",
        "_ahead_bytes",
        "_body",
        "_body_bytes",
        "_deadline",
        "_handler",
        "_head_bytes",
        "_headers",
        "_here",
        "_in_head",
        "_keep_alive",
        "_limits",
        "_lingering",
        "_offered",
        "_parser",
        "_read_bytes",
        "_remote",
        "_reply",
        "_request",
        "_room",
        "_target",
        "_task",
        "_transport",
        "_unread",
        "paused",
    )

    def __init__(
        self,
        handler: Handler,
        limits: Callable[[], LimitOptions],
        room: memoryview,
        here: set[Connection],
        admit: Admit,
    ) -> None:
        """`here` are the connections of the server: this one is among them while it is open."""
        self._handler = handler
        self._admit = admit
        self._limits = limits
        self._room = room
        self._here = here
        self._parser = httptools.HttpRequestParser(self)
        self._transport = cast(asyncio.Transport, None)
        self._remote: str | None = None
        # The message that comes in: of its head, and in a body's frame since the last of it, so much is read.
        self._in_head = False
        self._head_bytes = 0
        self._read_bytes = 0
        self._target = b""
        self._headers = _NO_HEADERS
        self._request: Request | None = None
        # One that offers another protocol, until its body is read.
        self._offered: Request | None = None
        self._body: list[bytes | bytearray] = []
        self._body_bytes = 0
        # Those whole but not served yet, what came ahead of its turn, and the one being served.
        self._ahead: list[Request] = []
        self._ahead_bytes = 0
        self._reply: Reply | None = None
        self._task: asyncio.Task[None] | None = None
        self._keep_alive = True
        self._lingering = False
        # Whether the client does not read.
        self.paused = False
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
        # It holds methods of this connection: else both were left to the cyclic collector.
        self._parser = cast(httptools.HttpRequestParser, None)
        if self._task is not None and self._reply is not None:
            self._reply.lost()
            self._task.cancel()

    def eof_received(self) -> bool:
        """Close: a client that sends no more is taken to have left, even one that shut down only its sending.

        Who leaves and who half-closes look alike until something is written, and the answer of a client that
        has left costs a replica seconds. Other proxies do the same.
        """
        if self._reply is not None and not self._reply.ended:
            self._transport.abort()
        elif not self._transport.is_closing():
            self._close()
        return False

    def pause_writing(self) -> None:
        """The client does not read: whoever sends to it waits."""
        self.paused = True
        self._await_reading()
        if self._reply is not None and self._reply.source is not None:
            self._reply.source.pause()

    def resume_writing(self) -> None:
        """The client has read."""
        self.paused = False
        if self._transport.is_closing():
            return
        if self._reply is not None:
            self._deadline = inf
            if self._reply.source is not None:
                self._reply.source.resume()
        elif self._ahead:
            self._serve(self._ahead.pop(0))
        elif self._lingering:
            self._deadline = monotonic() + _LINGER_SECONDS
        else:
            self._deadline = self._idle_until()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read to; it is taken in before anybody else reads."""
        return self._room

    def buffer_updated(self, count: int) -> None:
        """Take in what was read."""
        if self._lingering:
            return
        self._read_bytes = count
        self._feed(self._room[:count])
        if (self._in_head or self._request is not None) and not self._lingering:
            self._head_bytes += count
            if self._head_bytes > self._limits().header_bytes:
                self._refuse(headers_too_large())

    def _feed(self, data: memoryview | bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline(bytes(data[upgrade.args[0] :]))
        except httptools.HttpParserCallbackError:
            log.exception("a fault while reading a request")
            self._transport.abort()
        except httptools.HttpParserError as error:
            if not self._lingering:
                self._refuse(unreadable(error))

    def _decline(self, rest: bytes) -> None:
        """Go on without the protocol that was offered: what follows is HTTP/1.1 still."""
        self._parser = httptools.HttpRequestParser(self)
        if self._offered is not None:
            # The parser that saw the offer would take the body for the other protocol.
            self._request, self._offered = self._offered, None
            rest = body_alone(self._request) + rest
        if rest and not self._lingering:
            self._feed(rest)

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._request is not None:
            # Only its body does: its head is known.
            return
        self._in_head = True
        # What was read with the end of the last request is mostly that.
        self._head_bytes = 0 if self._reply is None else -self._read_bytes
        self._target = b""
        self._headers = Headers()
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
        if self._lingering or self._request is not None:
            return
        parser, limits, ahead = self._parser, self._limits(), self._reply is not None
        most_bytes = inf if ahead else self._head_bytes + self._read_bytes
        request = read_head(parser, self._target, self._headers, self._remote, most_bytes, limits)
        self._request, self._body, self._body_bytes = request, [], 0
        self._headers = _NO_HEADERS
        self._head_bytes = -self._read_bytes
        refusal = request.refusal or self._admit(request)
        if refusal is not None:
            self._refuse(refusal)
            return
        if ahead and self._is_ahead(request.size):
            return
        fields = request.headers.bytes
        if b"content-length" in fields or b"transfer-encoding" in fields:
            if not ahead:
                self._deadline = monotonic() + limits.body_seconds
                if b"expect" in fields and not request.http_1_0:
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if b"upgrade" in fields and parser.should_upgrade():
                self._offered, self._request = request, None

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        if self._lingering or self._is_ahead(len(piece)):
            return
        body = self._body
        body.append(piece)
        if len(body) > _MOST_PIECES:
            # Chunks may be of two bytes: each by itself takes many times that.
            if not isinstance(body[0], bytearray):
                body[0] = bytearray(body[0])
            body[0] += b"".join(body[1:])
            del body[1:]
        self._body_bytes += len(piece)
        self._head_bytes = -self._read_bytes
        if self._body_bytes > self._limits().body_bytes:
            self._body = []
            self._refuse(too_large(self._limits().body_bytes))

    def on_message_complete(self) -> None:
        """The request is whole."""
        request, body = self._request, self._body
        if request is None or self._lingering:
            return
        self._request, self._body = None, []
        request.body = bytes(body[0]) if len(body) == 1 else b"".join(body)
        self._take(request)

    def _is_ahead(self, count: int) -> bool:
        """Count what comes ahead of its turn; say whether it is too much, and is not taken."""
        if self._reply is None or self._reply.ended:
            return False
        self._ahead_bytes += count
        if self._ahead_bytes <= _MOST_AHEAD_BYTES:
            return False
        self._take_no_more()
        return True

    def _take_no_more(self) -> None:
        """Serve what came whole; a client that does not wait for answers has to begin anew."""
        self._lingering = True
        self._request = None
        self._body = []
        last = self._ahead[-1] if self._ahead else self._reply
        if last is not None:
            last.keep_alive = False

    # Serving.

    def _take(self, request: Request) -> None:
        if self._reply is None:
            self._serve(request)
            return
        self._ahead.append(request)
        if len(self._ahead) >= _MOST_AHEAD:
            self._take_no_more()

    def _serve(self, request: Request) -> None:
        self._deadline = inf
        if not self._ahead:
            self._ahead_bytes = 0
        keep_alive = request.keep_alive and self._keep_alive
        self._reply = reply = Reply(self, keep_alive, request.http_1_0, request.method == "HEAD")
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
            self._close()
        elif self._ahead and reply.keep_alive:
            if not self.paused:
                self._serve(self._ahead.pop(0))
        elif self._lingering:
            self._linger()
        elif not reply.keep_alive:
            self._close()
        elif not self.paused:
            self._deadline = self._idle_until()
        # Who has not read its answer does so within the limit of pause_writing before anything else.

    def _refuse(self, refusal: ApiError) -> None:
        """Answer a request that cannot be read on; then the connection ends."""
        request = self._request or Request("GET", b"", self._headers, self._remote)
        request.refusal = refusal
        request.keep_alive = False
        self._request = None
        self._in_head = False
        self._lingering = True
        self._take(request)

    def _linger(self) -> None:
        """Let the client read why, and end its sending."""
        self._deadline = monotonic() + (self._limits().write_seconds if self.paused else _LINGER_SECONDS)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    # What replies and the server call.

    def write(self, data: bytes) -> None:
        """Send bytes of the reply; to a client that left, nothing is sent."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def break_off(self) -> None:
        """Close behind what was sent."""
        self._keep_alive = False
        self._close()

    def retire(self) -> None:
        """Serve what has begun, and nothing else."""
        self._keep_alive = False
        if self._reply is not None:
            self._reply.keep_alive = self._reply.keep_alive and self._reply.started
        elif not self._in_head and self._request is None:
            self._close()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def look(self, now: float) -> None:
        """Hold the limits of time."""
        if now < self._deadline:
            return
        if self.paused or self._transport.is_closing():
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
        if self._request is not None:
            return monotonic() + limits.body_seconds
        return monotonic() + (limits.header_seconds if self._in_head else limits.idle_client_seconds)
