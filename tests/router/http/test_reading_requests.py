"""What clients send: ahead of its turn, only when told to go on, and without an end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.router.http.smuggled import BODY, CHUNKED, LINE, SIZE
from tests.router.oracle.loops import LOOPS, running
from tests.router.oracle.pair import Call, Pair, call, connect, pair
from tests.router.oracle.wire import read_message

Place = tuple[asyncio.Runner, Pair]

_POST = LINE + b"\r\nHost: a\r\n"
_TE = b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module", params=LOOPS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A router before a replica."""
    with running(request.param, pair) as made:
        yield made


def _request(body: bytes, more: bytes = b"") -> bytes:
    return _POST + b"%bContent-Length: %d\r\n\r\n%b" % (more, len(body), body)


@pytest.mark.parametrize("frame", ["trailer", "extension"])
def test_the_frame_of_chunks_has_a_limit(place: Place, frame: str) -> None:
    runner, both = place
    begun = CHUNKED[: -len(b"\r\n")] + b"X: " if frame == "trailer" else b"1;"
    runner.run(_endless(both, _POST + _TE + begun))


async def _endless(both: Pair, begun: bytes) -> None:
    reader, writer = await connect(both.router.address)
    both.replica.got.clear()
    sent = 0
    writer.write(begun)
    with suppress(ConnectionError):
        # Whoever is refused is still listened to for a while, so that it sees why.
        while sent < 4_000_000 and not reader.at_eof():
            writer.write(b"y" * 16_384)
            sent += 16_384
            await writer.drain()
            await asyncio.sleep(0)
    answer = await read_message(reader)
    writer.close()
    assert answer is not None
    assert (answer.status, answer.whole) == (431, True)
    assert not both.replica.got


def test_what_comes_with_the_end_of_a_long_body_is_no_long_head(place: Place) -> None:
    runner, both = place
    runner.run(_long_then_short(both))


async def _long_then_short(both: Pair) -> None:
    reader, writer = await connect(both.router.address)
    long = _request(BODY.replace(b"sea", b"sea " * 25_000))
    short = _request(BODY)
    writer.write(long + short[:20])
    assert (await read_message(reader)).status == 200  # type: ignore[union-attr]
    writer.write(short[20:])
    assert (await read_message(reader)).status == 200  # type: ignore[union-attr]
    writer.close()


def test_a_client_is_told_to_go_on_if_it_can_read_that(place: Place) -> None:
    runner, both = place
    head = _POST + b"Expect: 100-Continue\r\nContent-Length: %d\r\n\r\n" % SIZE
    (answer,) = runner.run(call(both.router.address, Call(((head, BODY),), awaits_continue=True)))
    assert answer.status == 200
    old = head.replace(b"HTTP/1.1", b"HTTP/1.0")
    (answer,) = runner.run(call(both.router.address, Call(((old, BODY),))))
    assert (answer.status, answer.interim) == (200, [])


def test_no_offer_of_another_protocol_is_taken_up(place: Place) -> None:
    runner, both = place
    offer = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    asked = b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + offer + b"\r\n"
    requests = ((asked, b""), (asked, b""), (_request(BODY, offer), b""), (asked, b""))
    answers = runner.run(call(both.router.address, Call(requests, ahead=True)))
    assert [answer.status for answer in answers] == [200] * 4
    assert not any(answer.of("upgrade") for answer in answers)
