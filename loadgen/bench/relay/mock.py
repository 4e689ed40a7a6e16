"""Mock replicas: some ports of one process that answer at once, after a while, or in paced streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import cast

import uvloop

from loadgen.bench.relay.exchange import (
    EVENT_SECONDS,
    HELD_SECONDS,
    MODEL,
    json_answer,
    read_mark,
    stream_events,
)

_LARGEST_HEAD_BYTES = 64 * 1024
_CHAT = b"POST /v1/chat/completions "
_AT_ONCE = b"%09d" % 0
_PAGES = {
    b"/health": (b"application/json", b"{}"),
    b"/v1/models": (
        b"application/json",
        b'{"object":"list","data":[{"id":"%b","object":"model","created":1700000000,"owned_by":"mock"}]}'
        % MODEL.encode(),
    ),
    b"/metrics": (b"text/plain; version=0.0.4", b"# TYPE mock_up gauge\nmock_up 1\n"),
    b"/get_model_info": (b"application/json", b'{"model_path":"%b"}' % MODEL.encode()),
    b"/get_server_info": (b"application/json", b'{"model_path":"%b"}' % MODEL.encode()),
}


def _response(status: bytes, kind: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (status, kind, len(body))
    return head + body


_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Replica(asyncio.Protocol):
    """One connection; a request at a time, as HTTP/1.1 clients without pipelining send them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._missing = 0
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return
        request = data if len(self._parts) == 1 else b"".join(self._parts)
        end = request.find(b"\r\n\r\n")
        if end < 0:
            # Any byte more is worth another look.
            self._parts, self._missing = [request], 1
            if len(request) > _LARGEST_HEAD_BYTES:
                self._transport.abort()
            return
        self._missing = end + 4 + _content_length(request[: end + 2]) - len(request)
        if self._missing > 0:
            self._parts = [request]
            return
        self._parts, self._missing = [], 0
        if request.startswith(_CHAT):
            self._answer(request[end + 4 :])
        else:
            self._page(request.split(b" ", 2)[1])

    def _page(self, path: bytes) -> None:
        found = _PAGES.get(path)
        answer = _response(b"200 OK", *found) if found else _response(b"404 Not Found", b"text/plain", b"")
        self._transport.write(answer)

    def _answer(self, body: bytes) -> None:
        mark = read_mark(body)
        if mark is None:
            self._transport.write(_response(b"400 Bad Request", b"text/plain", b"no mark"))
            return
        kind, number = mark
        if kind == "json":
            self._transport.write(_response(b"200 OK", b"application/json", json_answer(number, _AT_ONCE)))
        elif kind == "held":
            self._waiting = self._loop.call_later(HELD_SECONDS, self._let_go, number, time.monotonic_ns())
        else:
            events = stream_events(number, b'"include_usage":true' in body)
            chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
            self._transport.write(_STREAM_HEAD)
            chunks[-1] += b"0\r\n\r\n"
            self._tell(chunks[::-1])

    def _let_go(self, number: bytes, since_nanoseconds: int) -> None:
        held = b"%09d" % ((time.monotonic_ns() - since_nanoseconds) // 1000)
        self._transport.write(_response(b"200 OK", b"application/json", json_answer(number, held)))

    def _tell(self, chunks: list[bytes]) -> None:
        """Send the last of what is left to send, and the others one by one."""
        self._transport.write(chunks.pop())
        if chunks:
            self._waiting = self._loop.call_later(EVENT_SECONDS, self._tell, chunks)


def _content_length(head: bytes) -> int:
    head = head.lower()
    start = head.find(b"\r\ncontent-length:")
    return int(head[start + 17 : head.find(b"\r\n", start + 2)]) if start >= 0 else 0


async def _serve(ports: Sequence[int]) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Replica, "127.0.0.1", port, backlog=1024) for port in ports]
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main(ports: Sequence[int]) -> None:
    """Serve until the process is ended."""
    uvloop.run(_serve(ports))
