"""The caller over the mock replicas, and over servers that break what they pass on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from loadgen.bench.relay.caller import Chunked, Order, call
from loadgen.bench.relay.exchange import Kind, json_answer, number, stream_events
from loadgen.bench.relay.mock import Replica


def order(port: int, kind: Kind, pids: tuple[int, ...] = ()) -> Order:
    return Order(port, kind, 1024, 4, 0.0, 0.2, "key", seed=0, pids=pids)


@asynccontextmanager
async def mock() -> AsyncIterator[int]:
    server = await asyncio.get_running_loop().create_server(Replica, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[int]:
    """A server with one answer to whatever comes in one piece."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def response(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def test_answers_are_counted_and_timed() -> None:
    async with mock() as port:
        reading = await call(order(port, "json", (os.getpid(),)))
    assert reading.requests > 10
    assert (reading.events, reading.failures, reading.failure) == (0, 0, "")
    assert 0 < reading.p50_milliseconds <= reading.p99_milliseconds
    assert reading.own_cpu_nanoseconds > 0
    assert len(reading.cpu_nanoseconds) == 1


async def test_what_a_replica_holds_is_no_delay() -> None:
    async with mock() as port:
        reading = await call(order(port, "held"))
    assert reading.requests
    assert reading.failures == 0
    assert reading.p50_milliseconds < 20


async def test_streams_are_counted_by_events() -> None:
    async with mock() as port:
        reading = await call(order(port, "sse"))
    assert reading.failures == 0, reading.failure
    # Two thirds and more of what the pace gives.
    assert reading.events >= 4 * 0.2 / 0.02 * 0.66


@pytest.mark.parametrize(
    ("answer", "story"),
    [
        (response(b"no", "503 Service Unavailable"), "503 Service Unavailable: b'no'"),
        (response(json_answer(number(1), b"0" * 9)), "an answer is not what the replica sent"),
        (response(json_answer(number(1), b"0" * 9)[:-2]), "an answer is not what the replica sent"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "neither a length nor chunks"),
    ],
)
async def test_a_broken_answer_is_a_failure(answer: bytes, story: str) -> None:
    async with answering(answer) as port:
        reading = await call(order(port, "json"))
    assert reading.failures
    assert story in reading.failure
    assert reading.requests == 0


async def test_a_stream_of_another_request_is_a_failure() -> None:
    events = b"".join(stream_events(number(1), usage=False))
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    async with answering(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events)) as port:
        reading = await call(order(port, "sse"))
    assert reading.failures
    assert "a stream is not what the replica sent" in reading.failure


async def test_a_port_where_nobody_listens_is_a_failure() -> None:
    async with mock() as port:
        pass
    reading = await call(order(port, "json"))
    assert reading.requests == 0
    assert "cannot connect" in reading.failure


def test_chunks_come_in_any_pieces() -> None:
    wire = b"5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"
    for size in range(1, len(wire) + 1):
        chunked = Chunked()
        pieces = [chunked.feed(wire[start : start + size]) for start in range(0, len(wire), size)]
        assert b"".join(pieces) == b"hello!"
        assert chunked.ended
    with pytest.raises(ValueError):
        Chunked().feed(b"nothing\r\n")


async def test_replicas_have_the_pages_that_routers_look_at() -> None:
    async with mock() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for path, status in (("/health", 200), ("/v1/models", 200), ("/metrics", 200), ("/nope", 404)):
            # In two pieces, as they may come.
            for piece in (f"GET {path} HT".encode(), b"TP/1.1\r\nhost: a\r\n\r\n"):
                writer.write(piece)
                await asyncio.sleep(0.01)
            assert (await reader.readline()).split()[1] == str(status).encode()
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()
