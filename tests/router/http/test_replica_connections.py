"""Connections to replicas: kept ones that end, answers ahead of their time, streams longer than any limit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.router.gateway.relayed import EVENTS
from tests.router.http.smuggled import BODY, LINE, SIZE
from tests.router.oracle.loops import LOOPS, running
from tests.router.oracle.pair import Call, Pair, call, pair
from tests.router.oracle.raw_replica import CASE, FINE, ByHand, Script
from tests.router.oracle.wire import Message
from tests.router.scripted import until

# Far below what the stream takes; each of its events comes sooner.
_LIMITS = {"first_byte_seconds": 0.5, "idle_seconds": 0.5, "body_seconds": 0.5, "write_seconds": 0.5}

Place = tuple[asyncio.Runner, Pair]


@pytest.fixture(scope="module", params=LOOPS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A router before a replica that sends anything."""
    with running(request.param, lambda: pair(**_LIMITS)) as made:
        yield made


@pytest.mark.parametrize("end", ["close", "reset"])
def test_no_request_is_lost_or_run_twice_where_kept_connections_end(place: Place, end: str) -> None:
    runner, both = place
    runner.run(_many(both, end))


async def _many(both: Pair, end: str) -> None:
    """The replica ends each connection behind an answer that promised to keep it, at once or a bit later."""
    both.replica.got.clear()
    both.replica.scripts = {
        str(number): Script(FINE.sent, seed=None, end=end if number % 3 else "keep") for number in range(150)
    }
    for number in range(150):
        (answer,) = await call(both.router.address, Call((_request(str(number)),)))
        assert (answer.status, answer.whole) == (200, True)
        await asyncio.sleep(0.001 * (number % 4 == 0))
    await both.idle()
    assert [message.of(CASE) for message in both.replica.got] == [[str(number)] for number in range(150)]


def test_a_stream_may_last_longer_than_any_limit(place: Place) -> None:
    runner, both = place
    runner.run(_long_stream(both))


async def _long_stream(both: Pair) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    events = [head, *EVENTS]

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for event in events:
            writer.write(event)
            await asyncio.sleep(0.06)

    (answer,) = await _answered_by(both, slowly)
    assert (answer.status, answer.whole, answer.body) == (200, True, b"".join(EVENTS))


def test_an_answer_ahead_of_its_request_spends_the_connection(place: Place) -> None:
    runner, both = place
    runner.run(_early_answer(both))


async def _early_answer(both: Pair) -> None:
    """The replica answers once it has the head, and takes whatever else comes for the next request."""
    connections = 0

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nno")
        # Longer than the router waits: sent over this connection, the next request would be found silent.
        await asyncio.sleep(1)

    long = BODY.replace(b"sea", b"sea " * 2_000_000)
    answers = await _answered_by(both, hasty, long, count=2)
    assert [(answer.status, answer.body) for answer in answers] == [(413, b"no"), (413, b"no")]
    assert connections == 2


async def _answered_by(both: Pair, serve: ByHand, body: bytes = BODY, count: int = 1) -> list[Message]:
    """Return how requests are answered while `serve` serves the replica's connections."""
    both.replica.hang_up()
    await until(lambda: not both.router.core.pool.idle)
    both.replica.by_hand = serve
    try:
        head = b"%b\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (LINE, len(body))
        return [
            answer for _ in range(count) for answer in await call(both.router.address, Call(((head, body),)))
        ]
    finally:
        both.replica.by_hand = None


def test_usage_is_counted_whatever_ends_lines(place: Place) -> None:
    runner, both = place
    runner.run(_usage(both))


async def _usage(both: Pair) -> None:
    told = b'{"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":7}}'
    counted = []
    for end in (b"\n", b"\r\n", b"\r"):
        for blank in (b" ", b""):
            stream = b"".join(EVENTS[:-1]) + b": ping\n\ndata: " + told + b"\n\n" + EVENTS[-1]
            body = stream.replace(b"data: ", b"data:" + blank).replace(b"\n", end)
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(
                body
            )
            both.replica.scripts = {"usage": Script(head + body, seed=7)}
            before = await _output_tokens(both)
            (answer,) = await call(both.router.address, Call((_request("usage"),)))
            assert answer.body == body
            await both.idle()
            counted.append(await _output_tokens(both) - before)
    assert counted == [7] * 6


async def _output_tokens(both: Pair) -> float:
    request = b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", b""
    (answer,) = await call(both.router.address, Call((request,)))
    lines = answer.body.decode().splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("kvring_output_tokens_total")
    )


def _request(case: str) -> tuple[bytes, bytes]:
    head = f"\r\nHost: a\r\n{CASE}: {case}\r\nContent-Length: {SIZE}\r\n\r\n"
    return LINE + head.encode(), BODY
