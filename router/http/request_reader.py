"""Reads a client's requests from the bytes that come. Strict about where each of them ends."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import cast

import httptools

from router.config import LimitOptions
from router.http.framing import body_alone, headers_too_large, read_head, unreadable
from router.http.headers import Headers
from router.http.reply import Admit, Reply
from router.http.request import Request, too_large
from router.wire.errors import ApiError

log = logging.getLogger("kvring.http")

# Requests sent ahead of their turn, and what is kept of them: few clients do so at all.
_MOST_AHEAD = 64
_MOST_AHEAD_BYTES = 256 * 1024
# More pieces of a body than this are joined.
_MOST_PIECES = 64
# What the connection has between requests: those of the last would be kept for as long as it idles.
_NO_HEADERS = Headers()


class RequestReader(asyncio.BufferedProtocol):
    """The half of a connection that reads; who extends it serves what was read."""

    # Most connections idle, and there are many.
    __slots__ = (
        "_admit",
        "_ahead",
        "_ahead_bytes",
        "_body",
        "_body_bytes",
        "_deadline",
        "_head_bytes",
        "_headers",
        "_in_head",
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
        "_transport",
    )

    def __init__(self, limits: Callable[[], LimitOptions], room: memoryview, admit: Admit) -> None:
        """`room` is where bytes are read to, shared by all connections of a server."""
        self._limits = limits
        self._room = room
        self._admit = admit
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
        # Whether nothing more is read, but to let the client see why.
        self._lingering = False
        # When something must have happened (monotonic); who serves a request is under limits of its own.
        self._deadline = inf

    @abstractmethod
    def _serve(self, request: Request) -> None:
        """Begin to serve a request: none is being served."""

    # What the event loop calls.

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

    def _take(self, request: Request) -> None:
        if self._reply is None:
            self._serve(request)
            return
        self._ahead.append(request)
        if len(self._ahead) >= _MOST_AHEAD:
            self._take_no_more()

    def _refuse(self, refusal: ApiError) -> None:
        """Answer a request that cannot be read on; then the connection ends."""
        request = self._request or Request("GET", b"", self._headers, self._remote)
        request.refusal = refusal
        request.keep_alive = False
        self._request = None
        self._in_head = False
        self._lingering = True
        self._take(request)

    def _forget_parser(self) -> None:
        # It holds methods of this connection: else both were left to the cyclic collector.
        self._parser = cast(httptools.HttpRequestParser, None)
