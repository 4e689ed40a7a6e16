"""One connection through a path: requests in, answers out, with the fault that was drawn for each."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from router.wire.errors import RAN_HEADER, error_body
from tests.soak.faults import NO_FAULT, SAID, Kind, garbled

if TYPE_CHECKING:
    from tests.soak.path import Attempt, Path

_SLOW = frozenset((Kind.DELAYED, Kind.STALLED, Kind.THROTTLED, Kind.SPLIT))
_LATE_SECONDS = 1.2
_QUEUED_BYTES = 64 * 1024
# What is sent in single bytes, before the rest comes as it may.
_SPLIT_BYTES = 1500


class Front(asyncio.Protocol):
    """The router's side of a connection."""

    def __init__(self, path: Path) -> None:
        self.attempt: Attempt | None = None
        self.busy = False
        self._path = path
        self._fault = NO_FAULT
        self._transport = cast(asyncio.Transport, None)
        self._back: Back | None = None
        self._unsent: list[bytes] = []
        self._head = b""
        self._body_left = 0
        self._requests = 0
        # Of the answer under way: what came of it, what was told, and how that begins.
        self._answer_bytes = self._told_bytes = 0
        self._start = b""
        self._whole = self._paused = False
        self._queue: deque[bytes] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._ending = False
        self._connecting: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self.busy and not self._head

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._path.fronts.add(self)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())
        if self._path.frozen:
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._path.fronts.discard(self)
        self._end()
        for task in (self._pump, self._connecting):
            if task is not None:
                task.cancel()
        if self._back is not None:
            self._back.transport.abort()

    def data_received(self, data: bytes) -> None:
        while data and not self._transport.is_closing():
            if self._body_left:
                piece, data = data[: self._body_left], data[self._body_left :]
                self._body_left -= len(piece)
                self._on(piece)
                continue
            head, separator, rest = (self._head + data).partition(b"\r\n\r\n")
            if not separator:
                self._head = head
                return
            self._head, data = b"", rest
            self._begin(head)
            self._on(head + separator)

    def pause_writing(self) -> None:
        if self._back is not None:
            self._back.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._back is not None and not self._path.frozen:
            self._back.transport.resume_reading()

    # What the path calls.

    def abort(self) -> None:
        """Reset it."""
        self._transport.abort()

    def freeze(self, frozen: bool) -> None:
        """Read nothing from either side, or go on."""
        for transport in (self._transport, self._back.transport if self._back else None):
            if transport is not None and not transport.is_closing():
                (transport.pause_reading if frozen else transport.resume_reading)()

    # Requests.

    async def _connect(self) -> None:
        try:
            _, back = await asyncio.get_running_loop().create_connection(
                lambda: Back(self), "127.0.0.1", self._path.replica_port
            )
        except OSError:
            self._transport.abort()
            return
        self._back = back
        if self._path.frozen:
            back.transport.pause_reading()
        unsent, self._unsent = self._unsent, []
        for piece in unsent:
            back.transport.write(piece)

    def _begin(self, head: bytes) -> None:
        """Take in a request's head."""
        line, *lines = head.decode("latin-1").split("\r\n")
        fields = dict(one.lower().split(": ", 1) for one in lines)
        self._end()
        self.busy = True
        target = line.split(" ")[1]
        self.attempt = self._path.begin(fields.get("x-request-id", ""), target, self._requests > 0)
        self._fault = self.attempt.fault if self.attempt is not None else NO_FAULT
        self._body_left = int(fields.get("content-length", 0))
        self._requests += 1
        self._answer_bytes = self._told_bytes = 0
        self._start = b""
        self._whole = self._paused = False

    def _on(self, piece: bytes) -> None:
        """Send a piece of a request on, or what the fault makes of it."""
        kind = self._fault.kind
        if kind is Kind.CLOSED:
            self.abort()
        elif kind in SAID:
            if not self._body_left:
                self._say(SAID[kind], kind is Kind.SAID_503_RAN)
        else:
            if self.attempt is not None and not self._body_left:
                self.attempt.started = True
            if self._back is None:
                self._unsent.append(piece)
            else:
                self._back.transport.write(piece)

    def _say(self, status: int, ran: bool) -> None:
        body = error_body(status, "the path to the replica says so", code="path")
        head = f"HTTP/1.1 {status} So\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        head += f"{RAN_HEADER}: true\r\n" if ran else ""
        self._whole = True
        self._tell(head.encode() + b"\r\n" + body)
        self._look()

    # Answers.

    def answer(self, data: bytes, whole: bool) -> None:
        """Send a piece of the answer on, which may end it, or what the fault makes of it."""
        kind, before = self._fault.kind, self._answer_bytes
        self._answer_bytes += len(data)
        self._whole = whole
        if kind in _SLOW:
            self._enqueue(data)
            return
        if kind is Kind.VANISHED:
            # At once, as where it was closed already; or later, when that explains nothing.
            late = _LATE_SECONDS if self._fault.variant % 2 else 0
            asyncio.get_running_loop().call_later(late, self.abort)
        elif kind is Kind.GARBLED and not before:
            self._tell(garbled(data, self._fault.variant))
        elif kind in (Kind.RESET, Kind.ENDED) and self._answer_bytes > self._fault.bytes:
            # Of all that comes at once, a part.
            self._tell(data[: max(1, self._fault.bytes - before)][: len(data) - 1])
            if kind is Kind.RESET:
                self.abort()
            else:
                self._transport.close()
        elif kind is Kind.BAD_CHUNK and before >= self._fault.bytes and data.endswith(b"\n\n\r\n"):
            self._tell(data + b"zz\r\nno chunk\r\n")
        else:
            self._tell(data)
        if kind is not Kind.VANISHED:
            self._look()

    def replica_gone(self, error: Exception | None) -> None:
        """Note that the replica's side ended."""
        if self._pump is not None and not self._pump.done():
            self._ending = True
        elif error is None:
            self._transport.close()
        else:
            self.abort()

    def _look(self) -> None:
        """Note an answer that was told whole."""
        if self._whole and not self._transport.is_closing():
            self._whole = self.busy = False
            if self.attempt is not None:
                self.attempt.answered = True
            self._end()

    def _tell(self, data: bytes) -> None:
        if not data or self._transport.is_closing():
            return
        if self.attempt is not None:
            if not self.attempt.status:
                self._start += data[: 12 - len(self._start)]
                if len(self._start) == 12 and self._start[9:].isdigit():
                    self.attempt.status = int(self._start[9:])
            self.attempt.told_bytes += len(data)
        self._told_bytes += len(data)
        self._transport.write(data)

    def _end(self) -> None:
        if self.attempt is not None:
            self.attempt.ended_at = asyncio.get_running_loop().time()
            self.attempt = None

    def _enqueue(self, data: bytes) -> None:
        self._queue.append(data)
        if self._back is not None and sum(map(len, self._queue)) > _QUEUED_BYTES:
            self._back.transport.pause_reading()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._deliver())

    async def _deliver(self) -> None:
        """Send what is queued, each piece in its own time."""
        while self._queue:
            data = self._queue.popleft()
            match self._fault.kind:
                case Kind.THROTTLED:
                    for place in range(0, len(data), 512):
                        self._tell(data[place : place + 512])
                        await asyncio.sleep(0.004)
                case Kind.SPLIT:
                    split = max(0, _SPLIT_BYTES - self._told_bytes)
                    for place in range(min(split, len(data))):
                        self._tell(data[place : place + 1])
                        await asyncio.sleep(0)
                    self._tell(data[split:])
                case Kind.STALLED:
                    self._tell(data)
                    await self._pause_once()
                case _:
                    await self._pause_once()
                    self._tell(data)
        if self._back is not None and not self._path.frozen and not self._back.transport.is_closing():
            self._back.transport.resume_reading()
        self._look()
        if self._ending:
            self._transport.close()

    async def _pause_once(self) -> None:
        if not self._paused:
            self._paused = True
            await asyncio.sleep(self._fault.seconds)


class Back(asyncio.Protocol):
    """The replica's side of a connection."""

    def __init__(self, front: Front) -> None:
        self.transport = cast(asyncio.Transport, None)
        self._front = front
        self._parser = httptools.HttpResponseParser(self)
        self._whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        whole, self._whole = self._whole, False
        self._front.answer(data, whole)

    def on_message_complete(self) -> None:
        """Note the end of an answer."""
        self._whole = True

    def connection_lost(self, error: Exception | None) -> None:
        self._front.replica_gone(error)
