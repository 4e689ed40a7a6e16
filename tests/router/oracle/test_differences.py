"""Where the router differs from its oracle on purpose: each difference, what both do, and why."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.router.http.smuggled import BODY, CHUNKED, LINE
from tests.router.oracle.loops import LOOPS, running
from tests.router.oracle.pair import Call, Pair, call, pair
from tests.router.oracle.raw_replica import CASE, FINE, Script
from tests.router.oracle.wire import Message

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
_LARGE = 200 * 1024


@dataclass(frozen=True, slots=True)
class Difference:
    """`ours` and `then` say what is seen of each: see `_seen`. A `line` or `head` is other than usual."""

    reason: str
    ours: str
    then: str
    head: bytes = b""
    line: bytes = LINE
    body: bytes = BODY
    length: bool = True
    script: Script = FINE


_COMPRESSED = gzip.compress(BODY, mtime=0)
DIFFERENCES = {
    "headers over the limit": Difference(
        "431 says what is wrong with them, and that shorter ones would do",
        "431",
        "400",
        head=b"X-Long: " + b"y" * 40_000 + b"\r\n",
    ),
    "an unknown encoding of a body": Difference(
        "415 tells the client to send it otherwise: nobody can read what it says it is",
        "415",
        "200",
        head=b"Content-Encoding: zip\r\n",
    ),
    "a coding that is not chunked": Difference(
        "501 is what RFC 9112 asks for: what is coded otherwise is no JSON",
        "501",
        "200",
        head=b"Transfer-Encoding: gzip, chunked\r\n",
        body=CHUNKED,
        length=False,
    ),
    "an unknown expectation": Difference(
        "417 is answered before the body comes; then the connection ends, as the body may follow or not",
        "417 close",
        "417",
        head=b"Expect: 200-ok\r\n",
    ),
    "chunks of HTTP/1.0": Difference(
        "RFC 9112 has their framing taken for faulty",
        "400",
        "200",
        line=LINE.replace(b"1.1", b"1.0"),
        head=b"Transfer-Encoding: chunked\r\n",
        body=CHUNKED,
        length=False,
    ),
    "HTTP/2.0 in text": Difference("there is no such thing", "505", "200", line=LINE.replace(b"1.1", b"2.0")),
    "a fragment in a target": Difference(
        "a fragment never leaves its client", "400", "200", line=LINE.replace(b" HTTP", b"#x HTTP")
    ),
    "an escaped path": Difference(
        "a path is what it says: the replica may read its escapes otherwise",
        "404",
        "200 to /v1/chat/completions",
        line=LINE.replace(b"completions", b"%63ompletions"),
    ),
    "an escaped query": Difference(
        "what the client sent is passed on as it is",
        "200 to /v1/chat/completions?q=%2f%7e",
        "200 to /v1/chat/completions?q=/~",
        line=LINE.replace(b" HTTP", b"?q=%2f%7e HTTP"),
    ),
    "several X-Forwarded-For": Difference(
        "all of them are one list of hops",
        "x-forwarded-for: 192.0.2.1, 192.0.2.2, 127.0.0.1",
        "x-forwarded-for: 192.0.2.1, 127.0.0.1",
        head=b"X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 192.0.2.2\r\n",
    ),
    "no type of an answer": Difference(
        "nothing is made up that the replica did not say",
        "200 body of 2",
        "200 body of 2 content-type: application/octet-stream",
        script=Script(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    ),
    "bytes of Latin-1 in an answer's header": Difference(
        "they are passed on; aiohttp drops them",
        "200 x-lang: Gr\xfc\xdfe",
        "200 x-lang: Gre",
        script=Script(_OK + b"X-Lang: Gr\xfc\xdfe\r\nContent-Length: 2\r\n\r\nok"),
    ),
    "a folded header of an answer": Difference(
        "RFC 9112 lets it be refused, and others may read it otherwise",
        "502",
        "200",
        script=Script(_OK + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\nok"),
    ),
    "a coding of an answer that is not chunked": Difference(
        "its end could be anywhere",
        "502",
        "200",
        script=Script(_OK + b"Transfer-Encoding: identity\r\n\r\nok", end="close"),
    ),
    "a status that is none": Difference(
        "clients cannot know what it means",
        "502",
        "999",
        script=Script(_OK.replace(b"200", b"999") + b"\r\n", end="close"),
    ),
    "a large JSON answer that breaks off": Difference(
        "128 KiB are gathered, not 1 MiB: a client that does not read holds no more",
        "200 broken",
        "502",
        script=Script(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (_LARGE * 2, b" " * _LARGE),
            end="close",
        ),
    ),
    "keep-alive of HTTP/1.0": Difference(
        "what hardly anybody speaks any more has no features",
        "200 close",
        "200",
        line=LINE.replace(b"1.1", b"1.0"),
        head=b"Connection: keep-alive\r\n",
    ),
    "several lines of Connection": Difference(
        "whatever any of them names ends here",
        "200",
        "200 x-drop: 1",
        head=b"Connection: keep-alive\r\nConnection: X-Drop\r\nX-Drop: 1\r\n",
    ),
}


@pytest.fixture(scope="module", params=LOOPS)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[asyncio.Runner, Pair]]:
    """Both before one replica, on each event loop."""
    with running(request.param, pair) as made:
        yield made


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_as_it_is_told(name: str, place: tuple[asyncio.Runner, Pair]) -> None:
    runner, both = place
    runner.run(_see(both, DIFFERENCES[name]))


async def _see(both: Pair, one: Difference) -> None:
    host = b"Host: a b\r\n" if one.head == b"HOST" else b"Host: a\r\n"
    length = b"Content-Length: %d\r\n" % len(one.body) if one.length else b""
    head = b"" if one.head == b"HOST" else one.head
    sent = b"%b\r\n%b%b: odd\r\n%b%b\r\n" % (one.line, host, CASE.encode(), head, length)
    both.replica.scripts = {"odd": one.script}
    for address, expected in ((both.router.address, one.ours), (both.oracle.address, one.then)):
        both.replica.got.clear()
        (answer,) = await call(address, Call(((sent, one.body),)))
        await both.idle()
        _seen(answer, both.replica.got, expected)


def _seen(answer: Message, got: list[Message], expected: str) -> None:
    """Fail where not all is seen that is expected, a status first, words of headers and targets behind it."""
    told = [
        str(answer.status),
        "broken" if not answer.whole else "",
        *answer.of("connection"),
        f"body of {len(answer.body)}",
        *(f"{name}: {value}" for name, value in answer.fields),
        *(f"to {message.first[1]}" for message in got),
        *(f"{name}: {value}" for message in got for name, value in message.fields),
    ]
    rest = expected
    for one in sorted(filter(None, told), key=len, reverse=True):
        rest = rest.replace(one, "", 1)
    assert not rest.strip(), (expected, told)
    assert ("broken" in expected) is not answer.whole
