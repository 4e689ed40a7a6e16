"""Link: a worker's end of the line to its supervisor, which asks it and which it asks about all workers."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Protocol, cast

from router.wire.errors import ApiError, Source
from router.workers.message import About, BrokenError, Inbox, Kind, Message, framed

log = logging.getLogger("kvring.workers")

# Longer than a supervisor waits for a worker that does not answer.
_ASK_SECONDS = 3.0
_MOST_ASKS = 64
_CLOSE_SECONDS = 1.0
# Counts since the last snapshot are lost where a worker is killed; a snapshot may cost a hundredth of a core.
_SNAPSHOT_SECONDS = 1.0
_SNAPSHOT_SHARE = 0.01


def _silent() -> ApiError:
    """Nothing true can be said of all workers: sums without some of them would go back."""
    return ApiError(
        503, "this worker's supervisor does not answer", source=Source.ROUTER, code="supervisor_silent"
    )


class Answers(Protocol):
    """What a worker can be asked."""

    def snapshot(self) -> bytes:
        """Return its metrics as they are now."""

    def explained(self, request_id: str) -> bytes:
        """Explain one of its last requests as JSON; empty where it knows none of that id."""


class Link(asyncio.Protocol):
    """Speaks over one end of a socket pair; opened and closed within one event loop."""

    def __init__(self, end: socket.socket) -> None:
        """`end` is a stream socket, and the link's own from now on."""
        self._end = end
        self._inbox = Inbox()
        self._transport: asyncio.WriteTransport | None = None
        self._order: Callable[[Kind], None] = lambda kind: None
        self._answers: Answers | None = None
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._last = 0
        self._next_snapshot: asyncio.TimerHandle | None = None
        self._closing = False
        self._lost = asyncio.Event()

    async def open(self, order: Callable[[Kind], None]) -> None:
        """Begin to listen; `order` gets DRAIN, RELOAD or INSIST, the last also when the other end is gone."""
        self._order = order
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=self._end)

    def serve(self, answers: Answers, introduction: str) -> None:
        """Say that the worker serves, and where; answer from now on, and tell its metrics every second."""
        self._answers = answers
        self._send(Message(Kind.STARTED, body=introduction.encode()))
        self._tell_snapshot()

    async def ask(self, about: About, body: bytes = b"") -> bytes:
        """Ask about all workers; ApiError (503) where no answer comes in time."""
        if self._transport is None or len(self._asked) >= _MOST_ASKS:
            raise _silent()
        self._last = number = self._last + 1
        asked: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = asked
        self._send(Message(Kind.ASK, number, about, body))
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                return await asked
        except TimeoutError:
            raise _silent() from None
        finally:
            self._asked.pop(number, None)

    async def close(self) -> None:
        """Tell the last counts, and hang up once they are through."""
        if self._next_snapshot is not None:
            self._next_snapshot.cancel()
        if self._transport is None:
            return
        if self._answers is not None:
            self._send(Message(Kind.SNAPSHOT, body=self._answers.snapshot()))
        self._closing = True
        self._transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._lost.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what to write to."""
        # uvloop's is not declared to be one.
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """End this worker too, where its supervisor has gone without a word."""
        self._transport = None
        self._lost.set()
        if self._closing:
            return
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(_silent())
        log.error("the supervisor is gone; this worker ends")
        self._order(Kind.INSIST)

    def data_received(self, data: bytes) -> None:
        """Take messages."""
        try:
            for message in self._inbox.feed(data):
                self._take(message)
        except BrokenError:
            log.exception("the supervisor does not make sense")
            if self._transport is not None:
                self._transport.abort()

    def _take(self, message: Message) -> None:
        if message.kind is Kind.ASK:
            self._send(Message(Kind.ANSWER, message.number, body=self._answer(message)))
        elif message.kind is Kind.ANSWER:
            asked = self._asked.get(message.number)
            if asked is not None and not asked.done():
                asked.set_result(message.body)
        else:
            self._order(message.kind)

    def _answer(self, message: Message) -> bytes:
        if self._answers is None:
            return b""
        if message.about is About.SNAPSHOT:
            return self._answers.snapshot()
        return self._answers.explained(message.body.decode())

    def _tell_snapshot(self) -> None:
        if self._transport is None or self._answers is None:
            return
        began = monotonic()
        # One that does not read gets no more than it holds already.
        if self._transport.get_write_buffer_size() == 0:
            self._send(Message(Kind.SNAPSHOT, body=self._answers.snapshot()))
        pause = max(_SNAPSHOT_SECONDS, (monotonic() - began) / _SNAPSHOT_SHARE)
        self._next_snapshot = asyncio.get_running_loop().call_later(pause, self._tell_snapshot)

    def _send(self, message: Message) -> None:
        if self._transport is not None:
            self._transport.write(framed(message))
