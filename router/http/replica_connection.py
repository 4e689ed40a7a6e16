"""One pooled connection to a replica: requests out, answers in. Strict about where answers end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic
from typing import Protocol, cast

import httptools

from router.http.exchange import Exchange
from router.http.failures import BrokenOff, Garbled, Vanished
from router.http.framing import answer_fault
from router.http.headers import Headers
from router.http.origin import Origin

log = logging.getLogger("kvring.http")

# Answers' headers larger than this are no answer.
_HEAD_BYTES = 256 * 1024
# A kept connection that ends so soon after a request was written had been closed before it arrived.
_STALE_SECONDS = 0.5
# Smaller requests are copied into one piece: cheaper than sending several.
_JOINED_BYTES = 32 * 1024


class _Unfit(Exception):
    """An answer that can be parsed, and yet not taken."""


class Keeper(Protocol):
    """Who keeps connections while nobody uses them."""

    def free(self, connection: ReplicaConnection) -> None:
        """Take one that can take the next request."""

    def gone(self, connection: ReplicaConnection) -> None:
        """Forget one that can take none any more."""


class ReplicaConnection(asyncio.BufferedProtocol):
    """One connection to a replica: one exchange after another."""

    __slots__ = (
        "_exchange",
        "_frame_bytes",
        "_headers",
        "_interim",
        "_keep",
        "_keeper",
        "_parser",
        "_room",
        "_transport",
        "_until_end",
        "_used",
        "_whole",
        "idle_since",
        "origin",
    )

    def __init__(self, origin: Origin, room: memoryview, keeper: Keeper) -> None:
        """`room` is where bytes are read to, shared by all."""
        self.origin = origin
        self.idle_since = 0.0
        self._room = room
        self._keeper = keeper
        self._parser = httptools.HttpResponseParser(self)
        self._transport = cast(asyncio.Transport, None)
        self._exchange: Exchange | None = None
        self._headers = Headers()
        # Read since the last of a body: the head, and sizes, extensions and trailers of chunks.
        self._frame_bytes = 0
        self._until_end = False
        self._whole = False
        self._interim = False
        self._used = False
        self._keep = False

    @property
    def exchange(self) -> Exchange | None:
        """What is under way."""
        return self._exchange

    @property
    def usable(self) -> bool:
        """Whether another request may be sent over it."""
        return not self._transport.is_closing()

    def send(self, parts: Sequence[bytes | memoryview], size: int) -> Exchange:
        """Send a request, whose parts have `size` bytes in all, and return what becomes of it."""
        self._exchange = exchange = Exchange(self, self._used)
        self._used = True
        self._whole = self._until_end = False
        self._frame_bytes = 0
        if size <= _JOINED_BYTES:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)
        return exchange

    def pause(self) -> None:
        """Read nothing."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def give_up(self) -> None:
        """Close now, whatever is under way."""
        self._exchange = None
        self._keeper.gone(self)
        self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """End what is under way."""
        exchange, self._exchange = self._exchange, None
        self._keeper.gone(self)
        # It holds methods of this connection: else both were left to the cyclic collector.
        self._parser = cast(httptools.HttpResponseParser, None)
        if exchange is None:
            return
        if exchange.status and self._until_end and error is None:
            # Neither length nor chunks: this is how such a body ends.
            exchange.over(None)
        elif exchange.status:
            exchange.over(BrokenOff("the replica broke off its answer"))
        elif self._frame_bytes:
            exchange.over(Garbled("the answer broke off in its headers"))
        else:
            stale = exchange.reused and monotonic() - exchange.sent_at < _STALE_SECONDS
            exchange.over(Vanished(str(error or "closed before any answer"), stale))

    def eof_received(self) -> bool:
        """Close."""
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read to; it is taken in before anybody else reads."""
        return self._room

    def buffer_updated(self, count: int) -> None:
        """Take in what was read."""
        exchange = self._exchange
        if exchange is None:
            # Nobody asked: such an answer must not be taken for the next one's.
            self._transport.abort()
            return
        self._frame_bytes += count
        exchange.heard_at = monotonic()
        try:
            self._parser.feed_data(self._room[:count])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._whole:
                self._fail(_told(error))
                return
            # What came behind a whole answer says nothing about it; but nobody can know what follows.
            self._keep = False
        if self._whole:
            self._end(exchange)
        elif self._exchange is exchange:
            if self._frame_bytes > _HEAD_BYTES:
                self._fail("its headers are too large")
            elif exchange.status:
                exchange.flush()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """An answer begins: the one that is waited for, or one too many."""
        if self._whole:
            raise _Unfit("an answer nobody asked for")
        self._headers = Headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer, which nobody needs."""
        if self._exchange is not None and not self._exchange.status:
            self._headers.add(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        status = self._parser.get_status_code()
        self._interim = 100 <= status < 200
        exchange = self._exchange
        if self._interim or exchange is None:
            return
        fault = answer_fault(status, self._parser.get_http_version(), self._headers)
        if fault is not None or self._frame_bytes > _HEAD_BYTES:
            raise _Unfit(fault or "its headers are too large")
        fields = self._headers.bytes
        exchange.status = status
        exchange.headers = self._headers
        exchange.content_type = fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
        self._until_end = not (
            b"content-length" in fields or b"transfer-encoding" in fields or status in (204, 304)
        )
        if not exchange.head.done():
            exchange.head.set_result(None)

    def on_body(self, piece: bytes) -> None:
        """Pass a piece on."""
        self._frame_bytes = 0
        if self._exchange is not None:
            self._exchange.received(piece)

    def on_message_complete(self) -> None:
        """The answer is whole, unless others follow it by design."""
        if not self._interim:
            self._whole = True
            self._keep = self._parser.should_keep_alive()

    def _end(self, exchange: Exchange) -> None:
        if self._exchange is not exchange:
            # Whoever took the body wanted no more of it.
            return
        self._exchange = None
        transport = self._transport
        if (
            self._keep
            and not (self._until_end or exchange.paused or transport.is_closing())
            # An answer to half a request: the replica may take the rest for the next.
            and not transport.get_write_buffer_size()
        ):
            self.idle_since = exchange.heard_at
            self._keeper.free(self)
        else:
            self._keeper.gone(self)
            transport.abort()
        exchange.flush()
        exchange.over(None)

    def _fail(self, told: str) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        self._exchange = None
        self._keeper.gone(self)
        self._transport.abort()
        text = f"the answer cannot be read: {told}"
        exchange.over(BrokenOff(text) if exchange.status else Garbled(text))


def _told(error: Exception) -> str:
    """Return what is wrong with an answer, without what it says."""
    if isinstance(error, httptools.HttpParserUpgrade):
        return "it goes on in another protocol"
    if isinstance(error, httptools.HttpParserCallbackError):
        if not isinstance(error.__context__, _Unfit):
            log.error("a fault while passing an answer on", exc_info=error)
        return str(error.__context__)[:200]
    return str(error).split("\n", 1)[0][:200]
