"""Very many clients at once: some idle, some in the middle of a stream; and a replica for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import cast

from tests.router.gateway.leaving import token
from tests.router.http.alone import post
from tests.router.scripted import BODY

# One replica takes them all.
ROOM = ("limits.replica_requests=10000", "limits.replica_waiting=10000", "limits.longest_wait_seconds=600")
_AT_ONCE = 100
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Streaming(asyncio.Protocol):
    """A replica's side of one connection: begins a stream, and sends an event whenever `tell` is called."""

    def __init__(self, state: bytes, streams: set[Streaming]) -> None:
        """`state` is what GET /state answers; `streams` are those that have begun."""
        self._state = state
        self._streams = streams
        self._missing = 0
        self._begun = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._streams.discard(self)

    def data_received(self, data: bytes) -> None:
        self._begun += data
        head, end, body = self._begun.partition(b"\r\n\r\n")
        if not end:
            return
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
        if len(body) < int(length or 0):
            return
        self._begun = b""
        if head.startswith(b"GET /state"):
            answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            self._transport.write(answer % (len(self._state), self._state))
        elif head.startswith(b"GET"):
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        else:
            self._transport.write(_HEAD)
            self._streams.add(self)
            self.tell()

    def tell(self) -> None:
        """Send the next event."""
        self._transport.write(_chunked(token(7)))


class Client(asyncio.Protocol):
    """A client of the router that counts what it is sent."""

    def __init__(self, events: Callable[[int], None]) -> None:
        """`events` is called with how many events have come."""
        self._events = events
        self.closed = False
        self.refused = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 ") and b" 200 " not in data[:15]:
            self.refused = data
        if count := data.count(b"data: "):
            self._events(count)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True


class Crowd:
    """All clients of one router, 28,000 at most, as ports go; `events` came to them so far."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.events = 0
        self.clients: list[Client] = []

    async def join(self, count: int, send: bytes = b"") -> None:
        """Connect so many clients, each of which sends `send`."""
        while count:
            now = min(count, _AT_ONCE)
            await asyncio.gather(*(self._one(send) for _ in range(now)))
            count -= now

    async def _one(self, send: bytes) -> None:
        client = Client(self._came)
        self.clients.append(client)
        await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", self._port)
        if send:
            client.transport.write(send)

    def _came(self, count: int) -> None:
        self.events += count

    def closed(self) -> int:
        """How many were closed by the router."""
        return sum(client.closed for client in self.clients)

    def refused(self) -> list[bytes]:
        """Answers that were no streams."""
        return [client.refused for client in self.clients if client.refused]

    def leave(self) -> None:
        for client in self.clients:
            client.transport.abort()


def streamed(body_bytes: int = 200, continued: bool = True) -> bytes:
    """Return a request for a stream, about so large; not `continued`, it cannot go on elsewhere."""
    body = {**BODY, "stream": True, "messages": [{"role": "user", "content": "x" * body_bytes}]}
    return post(body if continued else {**body, "logprobs": True})


async def replica(state: object) -> tuple[asyncio.Server, str, set[Streaming]]:
    """Start a replica with that state; return its server, its URL and its streams."""
    streams: set[Streaming] = set()
    told = json.dumps(state).encode()
    server = await asyncio.get_running_loop().create_server(
        lambda: Streaming(told, streams), "127.0.0.1", 0, backlog=4096
    )
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", streams
