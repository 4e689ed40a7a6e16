"""Pausing: an answer waits while its client does not read, whatever else it had to wait for before."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from router.config import LimitOptions
from router.gateway.answer import BodyAnswer, EventAnswer
from router.http.exchange import Exchange
from router.http.failures import Stalled, UpstreamError
from router.http.pool import Pool
from router.http.reply import Handler, Reply
from router.http.request import Request
from router.http.server import HttpServer
from tests.router.http.alone import connect, post
from tests.router.http.feeding import settled
from tests.router.oracle.loops import LOOPS, running
from tests.router.scripted import chunk, until

_ANSWER_BYTES = 12_000_000
# Of what is not read, buffers of the kernel and of the router together hold far less.
_MOST_HELD_BYTES = 4_000_000
_EVENT = chunk("x" * 4000)
_LAST = b"data: [DONE]\n\n"


class _Feed:
    """A replica that sends the same answer to everybody, `at_once` of it with the head."""

    def __init__(self, head: bytes, piece: bytes, at_once: int) -> None:
        self._head = head + b"\r\nconnection: close\r\n\r\n"
        self._piece = piece
        self._at_once = at_once
        self.answers = 0
        self._written = 0
        self._transport: asyncio.WriteTransport | None = None

    @property
    def taken(self) -> int:
        """Bytes of the last answer that the kernel took."""
        return 0 if self._transport is None else self._written - self._transport.get_write_buffer_size()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.answers += 1
        self._transport = writer.transport
        self._written = self._at_once * len(self._piece)
        writer.write(self._head + self._at_once * self._piece)
        try:
            while self._written < _ANSWER_BYTES:
                await writer.drain()
                writer.write(self._piece)
                self._written += len(self._piece)
            writer.write(_LAST)
            await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()


class _Place:
    """A replica, a pool before it, and servers whose clients have little room in the kernel."""

    def __init__(self) -> None:
        self.limits = LimitOptions()
        self.pool = Pool(lambda: self.limits)
        self.feed = _Feed(b"", b"", 0)
        self.url = ""

    async def send(self) -> Exchange:
        head = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
        return await self.pool.send(self.pool.origin(self.url), [head], len(head))

    @asynccontextmanager
    async def client(self, handler: Handler) -> AsyncIterator[socket.socket]:
        server = HttpServer(handler, lambda: self.limits)
        url = await server.listen("127.0.0.1", 0)
        # Loopback takes in megabytes; the connections that are accepted inherit what a real network takes.
        server._server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 23040)  # type: ignore[union-attr]
        client = await connect(int(url.rsplit(":", 1)[1]), 4096)
        await asyncio.get_running_loop().sock_sendall(client, post("x"))
        try:
            yield client
        finally:
            client.close()
            await server.close()


@asynccontextmanager
async def _place() -> AsyncIterator[_Place]:
    place = _Place()
    replica = await asyncio.start_server(lambda r, w: place.feed.serve(r, w), "127.0.0.1", 0)
    replica.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    place.url = f"http://127.0.0.1:{replica.sockets[0].getsockname()[1]}"
    try:
        yield place
    finally:
        await place.pool.close()
        replica.close()


@pytest.fixture(scope="module", params=LOOPS)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[asyncio.Runner, _Place]]:
    with running(request.param, _place) as made:
        yield made


async def _read(client: socket.socket, end: bytes) -> int:
    """Read up to the end; return how many bytes those were."""
    count, tail = 0, b""
    async with asyncio.timeout(30):
        while not tail.endswith(end) and (
            piece := await asyncio.get_running_loop().sock_recv(client, 1 << 20)
        ):
            count += len(piece)
            tail = (tail + piece)[-len(end) :]
    assert tail == end
    return count


@pytest.mark.parametrize("at_once", [1, 40])
def test_an_answer_that_came_early_waits_for_its_client_all_the_same(
    place: tuple[asyncio.Runner, _Place], at_once: int
) -> None:
    runner, made = place
    runner.run(_early(made, at_once))


async def _early(place: _Place, at_once: int) -> None:
    place.feed = _Feed(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain", b"x" * 50_000, at_once)

    async def relay(request: Request, reply: Reply) -> None:
        exchange = await place.send()
        if at_once > 1:
            await until(lambda: exchange.paused)
        answer = BodyAnswer(exchange, reply, [], lambda: None)
        answer.begin()
        await answer.over
        exchange.close()

    async with place.client(relay) as client:
        await until(lambda: place.feed.taken > 0)
        assert await settled(lambda: place.feed.taken) < _MOST_HELD_BYTES
        assert await _read(client, b"0\r\n\r\n") > _ANSWER_BYTES


def test_who_goes_on_with_a_stream_waits_for_its_client(place: tuple[asyncio.Runner, _Place]) -> None:
    runner, made = place
    runner.run(_goes_on(made))


class _Through:
    """Whole events pass, as they are."""

    gone = False

    def take(self, events: bytes) -> bytes:
        return events


async def _goes_on(place: _Place) -> None:
    place.feed = _Feed(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream", _EVENT, 1)
    broken = asyncio.Event()

    async def relay(request: Request, reply: Reply) -> None:
        first = await place.send()
        answer = EventAnswer(reply, 1, False, lambda: None, _Through())
        answer.begin(first, [])
        await broken.wait()
        first.break_off(Stalled("hung"))
        await answer.over
        second = await place.send()
        answer.go_on(second, lambda: None, _Through())
        await answer.over
        second.close()
        reply.end()

    async with place.client(relay) as client:
        await until(lambda: place.feed.taken > 0)
        await settled(lambda: place.feed.taken)
        broken.set()
        await until(lambda: place.feed.answers == 2)
        assert await settled(lambda: place.feed.taken) < _MOST_HELD_BYTES
        assert await _read(client, b"0\r\n\r\n") > _ANSWER_BYTES


class _Breaking:
    """A sink that wants no more than one piece."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.pieces = 0
        self.ends: list[UpstreamError | None] = []

    def received(self, data: bytes) -> None:
        self.pieces += 1
        self._exchange.break_off(Stalled("enough"))

    def flush(self) -> None:
        pass

    def finished(self, error: UpstreamError | None) -> None:
        self.ends.append(error)


class _Idle:
    """What an answer comes over that has nothing more to read."""

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def give_up(self) -> None:
        pass


@pytest.mark.parametrize("whole", [False, True])
async def test_a_sink_that_breaks_off_is_told_of_the_end_once(whole: bool) -> None:
    exchange = Exchange(_Idle(), False)
    exchange.head.set_result(None)
    for _ in range(3):
        exchange.received(b"piece")
    if whole:
        exchange.over(None)
    sink = _Breaking(exchange)
    exchange.deliver(sink)
    assert sink.pieces == 1
    assert [str(end) for end in sink.ends] == ["enough"]
