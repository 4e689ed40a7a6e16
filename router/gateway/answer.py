"""Passes one answer to the client, byte for byte, as it comes, and notes what it says about itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from router.gateway.usage import AnswerReader
from router.http.exchange import Exchange
from router.http.failures import BrokenOff, Stopped, UpstreamError
from router.http.headers import Field
from router.http.reply import Reply
from router.wire.errors import error_body
from router.wire.sse import EventCutter, encode_event

# Answers up to this size are gathered before anything is sent: their usage can be read, and a replica that
# dies within one is answered with a proper error. No larger, as a client that does not read holds it.
_GATHERED_BYTES = 128 * 1024
# More pieces than this are joined: small ones take many times their size.
_MOST_PIECES = 64
# Behind so many bytes of a longer answer, its usage is looked for.
_TAIL_BYTES = 8 * 1024
# A longer event is passed on in pieces. Where events have to be whole, one may hold the prompt's token ids:
# seldom more than one for each byte of the request, of up to seven digits and a comma.
_EVENT_BYTES = 128 * 1024
_BYTES_A_TOKEN_ID = 8
_MOST_EVENT_BYTES = 4 * 1024 * 1024


class Filter(Protocol):
    """Reads whole events on their way to the client, and may change them."""

    # Whether the replica said that it goes, and that others had better go on.
    gone: bool

    def take(self, events: bytes) -> bytes:
        """Return what the client gets of these events."""


class BodyAnswer:
    """An answer that is no stream of events; a small one is sent only once it is whole.

    `over` is done when nothing more comes. Where it is `broken` before anything was sent, the client can be
    told properly; after that, its connection was closed within the body.
    """

    def __init__(
        self, exchange: Exchange, reply: Reply, fields: list[Field], heard: Callable[[], None]
    ) -> None:
        """`fields` are the headers for the client; `heard` is called with each piece that comes."""
        self._exchange = exchange
        self._reply = reply
        self._fields = fields
        self._heard = heard
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._gathers = (
            exchange.content_type == b"application/json" and b"content-encoding" not in exchange.headers.bytes
        )
        self._tail = b""
        self.reader = AnswerReader()
        self.broken: UpstreamError | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Take the body from now on."""
        self._reply.fill_from(self._exchange)
        if not self._gathers:
            self._reply.start(self._exchange.status, self._fields, self._exchange.content_length)
        self._exchange.deliver(self)

    def received(self, data: bytes) -> None:
        """Take a piece of the body."""
        self._heard()
        self._gathered.append(data)
        if self._gathers:
            self._gathered_bytes += len(data)
            if self._gathered_bytes > _GATHERED_BYTES:
                self._gathers = False
                self._reply.start(self._exchange.status, self._fields, self._exchange.content_length)

    def flush(self) -> None:
        """Make one of what came together, and send it: pieces may be of a few bytes."""
        if not self._gathered:
            return
        if self._gathers:
            if len(self._gathered) > _MOST_PIECES:
                self._gathered = [self._taken()]
            return
        data = self._taken()
        self._reply.write(data)
        if self._gathered_bytes:
            self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def finished(self, error: UpstreamError | None) -> None:
        """Take the end."""
        self._reply.fill_from(None)
        self.broken = error
        status = self._exchange.status
        self.flush()
        if self._gathers:
            if error is None:
                body = self._taken()
                if status == 200:
                    self.reader.read_body(body)
                self._reply.whole(status, self._fields, body)
        elif error is None:
            if self._tail and status == 200:
                self.reader.read_tail(self._tail)
            self._reply.end()
        else:
            self._reply.break_off()
        if not self.over.done():
            self.over.set_result(None)

    def _taken(self) -> bytes:
        gathered, self._gathered = self._gathered, []
        return gathered[0] if len(gathered) == 1 else b"".join(gathered)


class EventAnswer:
    """A stream of events. `over` is done when nothing more comes: then it is `whole`, or `broken`.

    A broken one can go on with another replica's events, or is ended by `give_up`: never cleanly, as clients
    would take it for whole.
    """

    def __init__(
        self,
        reply: Reply,
        choices: int,
        withhold_usage: bool,
        heard: Callable[[], None],
        through: Filter | None = None,
        request_bytes: int = 0,
    ) -> None:
        """`choices` as in AnswerReader; `withhold_usage` keeps back usage that no client asked for.

        `heard` is called with each piece that comes. Whole events pass `through`;
        `request_bytes` says how long those may be that tell of the prompt.
        """
        self._reply = reply
        self._withhold_usage = withhold_usage
        self._heard = heard
        self._through = through
        self._event_bytes = _EVENT_BYTES
        if through is not None:
            ids_bytes = request_bytes * _BYTES_A_TOKEN_ID
            self._event_bytes = min(_EVENT_BYTES + ids_bytes, _MOST_EVENT_BYTES)
        self._cutter = EventCutter(self._event_bytes)
        self._exchange: Exchange | None = None
        self._out: list[bytes] = []
        self.reader = AnswerReader(choices)
        self.whole = False
        self.broken: UpstreamError | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, exchange: Exchange, fields: list[Field]) -> None:
        """Send the head, and take the events from now on."""
        names = {name for name, _ in fields}
        if b"cache-control" not in names:
            fields.append((b"cache-control", b"no-cache"))
        if b"x-accel-buffering" not in names:
            fields.append((b"x-accel-buffering", b"no"))
        self._reply.start(200, fields, None)
        self._take(exchange)

    def go_on(self, exchange: Exchange, heard: Callable[[], None], through: Filter) -> None:
        """Take the rest from another replica."""
        self._heard = heard
        self._through = through
        self._cutter = EventCutter(self._event_bytes)
        self.reader.failed = False
        self.broken = None
        self.over = asyncio.get_running_loop().create_future()
        self._take(exchange)

    def close_with(self, events: list[bytes]) -> None:
        """End with events that are known without a replica."""
        self.broken = None
        self._cutter = EventCutter(self._event_bytes)
        for event in events:
            self._send(event)
        self.finished(None)

    def give_up(self) -> None:
        """Tell the client that this is not the end."""
        self.reader.failed = True
        body = (
            error_body(503, "the router went down before the answer ended", code="router_stopped")
            if isinstance(self.broken, Stopped)
            else error_body(502, "the replica broke off its answer", code="replica_lost")
        )
        self._reply.write(encode_event(body))
        self._reply.break_off()

    def received(self, data: bytes) -> None:
        """Take a piece of the stream."""
        self._heard()
        if self._through is None and self._cutter.empty and self.reader.passes(data):
            # Whole events of text: the usual case, told apart by scans in C.
            self._out.append(data)
            return
        for event in self._cutter.feed(data):
            self._send(event)
        if self._through is not None and self._through.gone and self._exchange is not None:
            self._exchange.break_off(BrokenOff("the replica ends"))

    def flush(self) -> None:
        """Send what came together as one."""
        if self._out:
            out, self._out = self._out, []
            data = out[0] if len(out) == 1 else b"".join(out)
            if data:
                self._reply.write(data)

    def finished(self, error: UpstreamError | None) -> None:
        """Take the end."""
        self._reply.fill_from(None)
        if error is None:
            rest = self._cutter.rest()
            withheld = bool(rest) and self.reader.read_event(rest) and self._withhold_usage
            self.whole = self.reader.finished
            if rest and self.whole and not withheld:
                self._out.append(self._through.take(rest) if self._through is not None else rest)
        else:
            # Choices may have ended one by one: only [DONE] tells that there were no more.
            self.whole = self.reader.done
        self.flush()
        if self.whole:
            self._reply.end()
        else:
            self.broken = error or BrokenOff("the stream ended before its end")
        if not self.over.done():
            self.over.set_result(None)

    def _take(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._reply.fill_from(exchange)
        exchange.deliver(self)

    def _send(self, event: bytes) -> None:
        if self._through is not None:
            event = self._through.take(event)
            if not event:
                return
        if self.reader.read_event(event) and self._withhold_usage:
            return
        self._out.append(event)
