"""Answers that are longer than anything in between can hold, and how much of them is where."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests.router.http.alone import Alone, alone, queued_bytes
from tests.router.scripted import BODY, ScriptedReplica, chunk, until

ANSWER_BYTES = 70_000_000
STREAM = {**BODY, "stream": True}
EVENT = chunk("x" * 900)
_PIECE = 50_000


class Feeding:
    """A replica's answer without end: counts what it wrote, and what of that went to the kernel."""

    def __init__(self, kind: str, size: int = ANSWER_BYTES) -> None:
        self.kind = kind
        self.size = size
        self.written = 0
        self.port = 0
        self.paired = 0
        self._transport: asyncio.Transport | None = None

    @property
    def in_kernel(self) -> int:
        """Bytes that the kernel took."""
        assert self._transport is not None
        return self.written - self._transport.get_write_buffer_size()

    def begun(self) -> bool:
        return self.written > 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        self._transport = transport
        self.port, self.paired = (transport.get_extra_info(name)[1] for name in ("sockname", "peername"))
        streamed = self.kind in ("events", "one event")
        headers = {
            "Content-Type": "text/event-stream"
            if streamed
            else "application/json"
            if self.kind == "json"
            else "application/octet-stream"
        }
        response = web.StreamResponse(headers=headers)
        if self.kind == "opaque":
            response.content_length = self.size
        await response.prepare(request)
        piece = {"events": EVENT * (_PIECE // len(EVENT)), "small": b"ab"}.get(self.kind, b"x" * _PIECE)
        if self.kind == "small":
            # Chunks of two bytes: many times that in memory, were each kept as it came.
            chunks = b"2\r\nab\r\n" * 8000
            while self.written < self.size:
                transport.write(chunks)
                self.written += len(chunks)
                await until(lambda: transport.get_write_buffer_size() < 65536, 60)
            return response
        if self.kind == "one event":
            await response.write(b"data: ")
        while self.written < self.size:
            part = piece[: self.size - self.written]
            self.written += len(part)
            await response.write(part)
        return response


async def settled(value: Callable[[], int]) -> int:
    """Return what a count stays at."""
    before = -1
    while (now := value()) != before:
        before = now
        await asyncio.sleep(0.15)
    return before


def held(feeding: Feeding, router: Alone, client: socket.socket, read: int) -> int:
    """Return what of an answer is neither with the replica, nor the client, nor in the kernel."""
    with_kernel = queued_bytes(feeding.port, feeding.paired)
    with_kernel += queued_bytes(router.port, client.getsockname()[1])
    return feeding.in_kernel - with_kernel - read


@asynccontextmanager
async def fed(kind: str, logs: Path, *settings: str) -> AsyncIterator[tuple[Feeding, ScriptedReplica, Alone]]:
    replica = ScriptedReplica("r0")
    await replica.start()
    feeding = Feeding(kind)
    replica.answer = feeding.answer
    try:
        async with alone([("r0", replica.url)], logs, *settings) as router:
            yield feeding, replica, router
    finally:
        await replica.stop()
