"""What a client can make the router keep: requests ahead of their turn, unread answers, connections."""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from router.config import LimitOptions
from router.http.connection import Connection
from router.http.origin import Origin
from router.http.pool import Pool
from router.http.replica_connection import ReplicaConnection
from router.http.reply import Reply
from router.http.request import Request
from router.http.server import HttpServer
from tests.router.http.alone import connect, post
from tests.router.scripted import until

_ANSWER = b"a" * 100_000


class _Served:
    """A server whose requests are answered when `gate` is open; `requests` have come to it."""

    def __init__(self, **limits: float) -> None:
        self.requests: list[Request] = []
        self.gate = asyncio.Event()
        self.limits = LimitOptions(**limits)
        self.server = HttpServer(self._handle, lambda: self.limits)
        self.port = 0

    async def _handle(self, request: Request, reply: Reply) -> None:
        self.requests.append(request)
        await self.gate.wait()
        reply.whole(200, [], _ANSWER)


@asynccontextmanager
async def _served(**limits: float) -> AsyncIterator[_Served]:
    served = _Served(**limits)
    served.port = int((await served.server.listen("127.0.0.1", 0)).rsplit(":", 1)[1])
    try:
        yield served
    finally:
        served.gate.set()
        await served.server.close()


async def _read(client: socket.socket) -> bytes:
    data = b""
    async with asyncio.timeout(10):
        while piece := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
            data += piece
    return data


@pytest.mark.parametrize(("body_bytes", "count", "whole"), [(10, 200, 65), (100_000, 20, 3)])
async def test_requests_ahead_of_their_turn_are_few_and_small(
    body_bytes: int, count: int, whole: int
) -> None:
    async with _served() as served:
        client = await connect(served.port)
        sending = asyncio.create_task(
            asyncio.get_running_loop().sock_sendall(client, post("x" * body_bytes) * count)
        )
        await until(lambda: len(served.requests) == 1)
        await asyncio.wait_for(sending, 10)
        served.gate.set()
        answers = await _read(client)
        # The one that was served meanwhile, and those that came whole within the limit.
        assert answers.count(b"HTTP/1.1 200 ") == len(served.requests) <= whole
        assert len(served.requests) >= whole - 1
        assert answers.count(b"connection: close") == 1
        client.close()


async def test_answers_that_are_not_read_hold_the_next_ones_back() -> None:
    async with _served() as served:
        served.gate.set()
        client = await connect(served.port, 4096)
        loop = asyncio.get_running_loop()
        count = 60
        await loop.sock_sendall(client, post("x") * count)
        await until(lambda: len(served.requests) > 0)
        await asyncio.sleep(0.3)
        assert len(served.requests) < count
        read = 0
        async with asyncio.timeout(10):
            while read < count * len(_ANSWER):
                read += len(await loop.sock_recv(client, 1 << 20))
        assert len(served.requests) == count
        client.close()


async def test_a_body_in_tiny_chunks_takes_little_more_than_its_size() -> None:
    count, size = 200_000, 2
    async with _served() as served:
        served.gate.set()
        client = await connect(served.port)
        loop = asyncio.get_running_loop()
        head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        await loop.sock_sendall(client, head)
        chunks = b"2\r\nab\r\n" * (count // 100)
        tracemalloc.start()
        try:
            for _ in range(100):
                await loop.sock_sendall(client, chunks)
                await asyncio.sleep(0)
            await asyncio.sleep(0.1)
            # As pieces of their own, they would take ten times that.
            assert tracemalloc.get_traced_memory()[1] < 4 * count * size
        finally:
            tracemalloc.stop()
        await loop.sock_sendall(client, b"0\r\n\r\n")
        await until(lambda: len(served.requests) == 1)
        assert served.requests[0].body == b"ab" * count
        client.close()


async def test_no_body_is_inflated_while_it_is_read() -> None:
    async with _served() as served:
        served.gate.set()
        client = await connect(served.port)
        sent = gzip.compress(b"x" * 10_000_000)
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(client, head % len(sent) + sent)
        await until(lambda: len(served.requests) == 1)
        assert served.requests[0].body == sent
        client.close()


async def test_a_client_that_half_closes_has_left() -> None:
    async with _served() as served:
        client = await connect(served.port)
        await asyncio.get_running_loop().sock_sendall(client, post("x"))
        await until(lambda: len(served.requests) == 1)
        client.shutdown(socket.SHUT_WR)
        assert await _read(client) == b""
        assert served.server.connections == 0
        client.close()


async def test_a_slow_body_behind_an_answer_is_waited_for_as_long_as_bodies_are() -> None:
    async with _served(idle_client_seconds=0.1, body_seconds=1) as served:
        served.gate.set()
        client = await connect(served.port)
        loop = asyncio.get_running_loop()
        first, second = post("x"), post("y" * 50)
        await loop.sock_sendall(client, first + second[:-10])
        await until(lambda: len(served.requests) == 1)
        await asyncio.sleep(0.5)
        await loop.sock_sendall(client, second[-10:])
        await until(lambda: len(served.requests) == 2)
        client.close()


def _alive(*kinds: type) -> int:
    # By type alone: to ask objects of others for their class may run their code.
    return sum(type(one) in kinds for one in gc.get_objects())


async def _connections_come_and_go() -> tuple[int, int]:
    """Return how many connections there are before, and after a few were made, used and closed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    limits = LimitOptions()
    replica = await asyncio.start_server(answer, "127.0.0.1", 0)
    pool = Pool(lambda: limits)
    origin = Origin("127.0.0.1", replica.sockets[0].getsockname()[1], False, b"x")

    async def relay(request: Request, reply: Reply) -> None:
        sent = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
        exchange = await pool.send(origin, [sent], len(sent), fresh=True)
        reply.whole(exchange.status, [], b"")
        exchange.close()

    server = HttpServer(relay, lambda: limits)
    port = int((await server.listen("127.0.0.1", 0)).rsplit(":", 1)[1])
    before = _alive(Connection, ReplicaConnection)
    for number in range(5):
        client = await connect(port)
        await asyncio.get_running_loop().sock_sendall(client, post("x"))
        await asyncio.get_running_loop().sock_recv(client, 100)
        client.close()
        await until(lambda: server.connections == 0)
        assert number >= 0
    await asyncio.sleep(0.1)
    after = _alive(Connection, ReplicaConnection)
    await server.close()
    await pool.close()
    replica.close()
    return before, after


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_closed_connections_are_gone_without_the_cyclic_collector(loop: str) -> None:
    """In a process of its own: whatever other tests have loaded is looked through too."""
    program = (
        "import asyncio, gc, uvloop\n"
        "from tests.router.http.test_ahead import _connections_come_and_go\n"
        "gc.collect(); gc.disable()\n"
        f"with asyncio.Runner(loop_factory={loop}.new_event_loop) as runner:\n"
        "    before, after = runner.run(_connections_come_and_go())\n"
        "assert after == before, (before, after)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=False, text=True
    )
    assert ended.returncode == 0, ended.stderr
