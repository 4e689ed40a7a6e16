"""Answers that others may read otherwise: a client gets them whole, or an error; never another's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.router.http.smuggled import BODY, LINE, SIZE
from tests.router.oracle.loops import LOOPS, running
from tests.router.oracle.pair import Call, Pair, call, pair
from tests.router.oracle.raw_replica import CASE, FINE, Script

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
_TE = b"Transfer-Encoding: chunked\r\n"
_BODY = b"Content-Length: 2\r\n\r\nok"
_CHUNKS = b"\r\n2\r\nok\r\n0\r\n\r\n"
_EVIL = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nevil"
_WHOLE = (200, b"ok", True)
_NONE = (502, None, True)


@dataclass(frozen=True, slots=True)
class Case:
    """What a replica sends, and the status, body (None for the router's own) and end that a client sees.

    Cut to pieces, a second answer may come in time for the next request: such are sent whole only.
    """

    raw: bytes
    expected: tuple[int, bytes | None, bool]
    cut: bool = True


CASES = {
    "plain": Case(_OK + _BODY, _WHOLE),
    "chunks": Case(_OK + _TE + _CHUNKS, _WHOLE),
    "chunks with extensions and trailers": Case(
        _OK + _TE + b'\r\n2;a="b;c"\r\nok\r\n000;d\r\nX-Case: evil\r\n\r\n', _WHOLE
    ),
    "no length": Case(_OK + b"\r\nok", _WHOLE),
    "HTTP/1.0": Case(_OK.replace(b"1.1", b"1.0") + _BODY, _WHOLE),
    "no reason": Case(_OK.replace(b" OK", b"") + _BODY, _WHOLE),
    "line ends ahead": Case(b"\r\n\r\n" + _OK + _BODY, _WHOLE),
    "blanks around a length": Case(_OK + b"Content-Length:  2 \t\r\n\r\nok", _WHOLE),
    "interim answers": Case(
        b"HTTP/1.1 100 Continue\r\nContent-Length: 9\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        + _OK
        + _BODY,
        _WHOLE,
    ),
    "an offer of another protocol": Case(_OK + b"Upgrade: h2c\r\nConnection: upgrade\r\n" + _BODY, _WHOLE),
    # What comes behind a whole answer is nobody's.
    "a second answer": Case(_OK + _BODY + _EVIL, _WHOLE, cut=False),
    "a second answer behind chunks": Case(_OK + _TE + _CHUNKS + _EVIL, _WHOLE, cut=False),
    "a second answer behind the last": Case(
        _OK + b"Connection: close\r\n" + _BODY + _EVIL, _WHOLE, cut=False
    ),
    "garbage behind an answer": Case(_OK + _BODY + b"\x00garbage", _WHOLE, cut=False),
    "line ends behind an answer": Case(_OK + _BODY + b"\r\n\r\n", _WHOLE),
    "204 with a body": Case(b"HTTP/1.1 204 No Content\r\n" + _BODY, (204, b"", True), cut=False),
    "204 with chunks": Case(b"HTTP/1.1 204 No Content\r\n" + _TE + _CHUNKS, (204, b"", True), cut=False),
    "204 with an answer as its body": Case(
        b"HTTP/1.1 204 No Content\r\nContent-Length: %d\r\n\r\n%b" % (len(_EVIL), _EVIL),
        (204, b"", True),
        cut=False,
    ),
    # Lengths and codings.
    "length and chunks": Case(_OK + _TE + _BODY, _NONE),
    "chunks and length": Case(_OK + b"Content-Length: 2\r\n" + _TE + _CHUNKS, _NONE),
    "one length twice": Case(_OK + b"Content-Length: 2\r\n" + _BODY, _NONE),
    "two lengths": Case(_OK + b"Content-Length: 3\r\n" + _BODY, _NONE),
    **{
        f"length {value!r}": Case(_OK + b"Content-Length: " + value + b"\r\n\r\nok", _NONE)
        for value in (b"+2", b"-2", b"2, 2", b"0x2", b"2_0", b"", b"2 2", b"9" * 30, b"2.0")
    },
    **{
        f"coding {value!r}": Case(_OK + b"Transfer-Encoding: " + value + b"\r\n" + _CHUNKS, _NONE)
        for value in (
            b"identity",
            b"xchunked",
            b"gzip",
            b"gzip, chunked",
            b"chunked, gzip",
            b"chunked, chunked",
            b"chunked\r\nTransfer-Encoding: chunked",
            b"\x0bchunked",
            b"",
        )
    },
    "chunks of HTTP/1.0": Case(_OK.replace(b"1.1", b"1.0") + _TE + _CHUNKS, _NONE),
    **{
        f"chunks {raw!r}": Case(_OK + _TE + b"\r\n" + raw, (200, None, False))
        for raw in (
            b"0x2\r\nok\r\n0\r\n\r\n",
            b"-2\r\nok\r\n0\r\n\r\n",
            b"2 \r\nok\r\n0\r\n\r\n",
            b"2\nok\n0\n\n",
            b"2\r\nokX\r\n0\r\n\r\n",
            b"2\r\nok0\r\n\r\n",
            b"10000000000000000\r\nok\r\n",
            b"2\r\nok\r\n0\r\nContent-Length: 50\r\n\r\n",
            b"2\r\nok\r\n0\r\nX Y: z\r\n\r\n",
        )
    },
    "too short": Case(_OK + b"Content-Length: 5\r\n\r\nok", (200, None, False)),
    # Heads.
    **{
        f"first line {line!r}": Case(line + b"\r\n" + _BODY, _NONE)
        for line in (
            b"HTTP/1.2 200 OK",
            b"HTTP/2.0 200 OK",
            b"HTTP/0.9 200 OK",
            b"http/1.1 200 OK",
            b"ICY 200 OK",
            b"HTTP/1.1 099 OK",
            b"HTTP/1.1 000 OK",
            b"HTTP/1.1 600 OK",
            b"HTTP/1.1 999 OK",
            b"HTTP/1.1 20 OK",
            b"HTTP/1.1 2000 OK",
            b"HTTP/1.1 2OO OK",
            b"HTTP/1.1 -20 OK",
            b"HTTP/1.1 101 Switching Protocols",
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c",
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/",
            b"HTTP/1.1 304 Not Modified",
            b"hello",
            b"\x00\x01\x02",
            b"GET / HTTP/1.1",
        )
    },
    **{
        f"header {line!r}": Case(_OK + line + b"\r\n" + _BODY, _NONE)
        for line in (
            b"X: y\nSet-Cookie: evil",
            b"X: y\rSet-Cookie: evil",
            b"X: a\x00b",
            b"X: a\x01b",
            b"X: a\x7fb",
            b"X: a\r\n b",
            b"X Y: a",
            b"X : a",
            b": a",
            b"X",
            b"X\x00: a",
            b"Content-Length : 2",
        )
    },
    "LF everywhere": Case((_OK + _BODY).replace(b"\r", b""), _NONE),
    "a cut head": Case(_OK + b"Content-Le", _NONE),
    "headers without end": Case(_OK + b"X: " + b"y" * 300_000 + b"\r\n" + _BODY, _NONE, cut=False),
    "interim answers without end": Case(b"HTTP/1.1 100 Continue\r\n\r\n" * 12_000, _NONE, cut=False),
    "trailers without end": Case(
        _OK + _TE + _CHUNKS[:-2] + b"X: " + b"y" * 400_000 + b"\r\n\r\n", (200, None, False), cut=False
    ),
}
# Whatever is expected behind these only shows where the connection ends.
_ENDED = ("no length", "too short", "a cut head", "LF everywhere")


@pytest.fixture(scope="module", params=LOOPS)
def before_a_replica(request: pytest.FixtureRequest) -> Iterator[tuple[asyncio.Runner, Pair]]:
    """A router before a replica that sends anything."""
    with running(request.param, pair) as made:
        yield made


@pytest.mark.parametrize("seed", [None, 1], ids=["whole", "cut"])
@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_passed_on_or_none_is(
    name: str, seed: int | None, before_a_replica: tuple[asyncio.Runner, Pair]
) -> None:
    runner, both = before_a_replica
    case = CASES[name]
    if seed is not None and not case.cut:
        seed = None
    runner.run(_try(both, name, case, seed))


async def _try(both: Pair, name: str, case: Case, seed: int | None) -> None:
    end = "close" if name in _ENDED or case.expected[2] is False else "keep"
    both.replica.scripts = {"odd": Script(case.raw, seed, end=end)}
    (odd,) = await call(both.router.address, Call((_request("odd"),)))
    status, body, whole = case.expected
    assert (odd.status, odd.whole) == (status, whole), odd
    if body is not None:
        assert odd.body == body
    elif whole:
        assert b'"error"' in odd.body
    assert not odd.of("set-cookie")
    assert not odd.of("content-length") or status != 204
    # Whoever comes next gets its own, over whichever connection.
    (fine,) = await call(both.router.address, Call((_request("fine"),)))
    assert (fine.status, fine.body) == (200, FINE.sent.partition(b"\r\n\r\n")[2])
    await both.idle()


def _request(case: str) -> tuple[bytes, bytes]:
    head = f"\r\nHost: a\r\n{CASE}: {case}\r\nContent-Length: {SIZE}\r\n\r\n"
    return LINE + head.encode(), BODY
