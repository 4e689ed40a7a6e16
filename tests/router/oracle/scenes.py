"""Scenes, drawn at random: requests of a client over one connection, and what a replica answers to each."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.router.oracle.pair import Call
from tests.router.oracle.raw_replica import CASE, Script
from tests.router.oracle.wire import chunks

_WORDS = ("sea", "春天来了", "😀", "Grüße", "line\nline", '"quoted"', "")
_SEEDS = st.integers(0, 2**16)
_PATHS = ("/v1/chat/completions", "/v1/chat/completions?api-version=1&q=a%20b", "/v1/completions")
_CLIENT_HEADERS = (
    b"Authorization: Bearer sk-1",
    b"X-Api-Key:  k \t",
    b"Cookie: a=b",
    b"Cookie: c=d",
    b"X-Forwarded-For: 192.0.2.7",
    b"Connection: keep-alive, X-Drop",
    b"X-Drop: 1",
    b"TE: trailers",
    b"Keep-Alive: timeout=5",
    b"Proxy-Authorization: x",
    b"X-Kvring-Trace: 1",
    b"X-Gateway-Destination-Endpoint: 10.0.0.1",
    b"X-Data-Parallel-Rank: 3",
    b"Accept-Encoding: gzip, br",
    b"User-Agent: SDK/1.0 (\xe6\xb5\xb7)",
    b"x-stainless-retry-count: 1",
    b"Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"X-Empty:",
    b"Upgrade: h2c",
)
_REPLICA_HEADERS = (
    b"Set-Cookie: a=b",
    b"Set-Cookie: c=d",
    b"X-Shown:  1 \t",
    b"Connection: X-Secret",
    b"X-Secret: 1",
    b"Keep-Alive: timeout=5",
    b"X-Kvring-Replica: forged",
    b"X-Request-Id: forged",
    b"Server: evil",
    b"Cache-Control: no-store",
    b"Retry-After: 3",
    b"X-Lang: Gr\xc3\xbc\xc3\x9fe",
    b"x-should-retry: true",
)
_ENDS = ("\n", "\r\n", "\r")


@dataclass(frozen=True, slots=True)
class Scene:
    """`scripts` by x-case, one for each request of the call."""

    call: Call
    scripts: dict[str, Script]


@st.composite
def scenes(draw: st.DrawFn, leaves: bool = False) -> Scene:
    """Draw a scene; in some the client `leaves` at any byte."""
    count = draw(st.sampled_from((1, 1, 2, 3)))
    requests = tuple(draw(_requests(index, count == 1)) for index in range(count))
    scripts = {str(index): draw(_scripts()) for index in range(count)}
    size = sum(len(head) + len(body) for head, body in requests)
    call = Call(
        requests,
        seed=draw(_SEEDS),
        ahead=draw(st.booleans()),
        stop=draw(st.integers(0, size)) if leaves else None,
        by_reset=draw(st.booleans()),
    )
    return Scene(call, scripts)


@st.composite
def _requests(draw: st.DrawFn, index: int, alone: bool) -> tuple[bytes, bytes]:
    body = json.dumps(draw(_asked()), ensure_ascii=draw(st.booleans())).encode()
    if draw(st.integers(0, 15)) == 0:
        body = body[: len(body) // 2]
    head = draw(st.lists(st.sampled_from(_CLIENT_HEADERS), unique=True, max_size=8))
    match draw(st.sampled_from(("plain", "plain", "plain", "gzip", "deflate"))):
        case "gzip":
            body, coded = gzip.compress(body, mtime=0), b"gzip"
        case "deflate":
            body, coded = zlib.compress(body), b"deflate"
        case _:
            coded = b""
    if coded:
        head.append(b"Content-Encoding: " + coded)
    old = alone and draw(st.integers(0, 5)) == 0
    if old:
        head = [line for line in head if not line.startswith(b"Connection")]
    if old or draw(st.booleans()):
        head.append(b"Content-Length: %d" % len(body))
    else:
        trailers = draw(st.sampled_from((b"", b"X-Case: 9\r\nX-Trailer: 1\r\n")))
        body = chunks(body, draw(_SEEDS), trailers)
        head.append(b"Transfer-Encoding: chunked")
    head = draw(st.permutations(head))
    first = f"POST {draw(st.sampled_from(_PATHS))} HTTP/1.{0 if old else 1}\r\n"
    fixed = f"Host: public.example\r\nAccept: */*\r\n{CASE}: {index}\r\n"
    lines = b"".join(line + b"\r\n" for line in head)
    return first.encode() + fixed.encode() + lines + b"\r\n", body


def _asked() -> st.SearchStrategy[dict[str, Any]]:
    text = st.lists(st.sampled_from(_WORDS), min_size=1, max_size=12).map(" ".join)
    return st.fixed_dictionaries(
        {
            "model": st.sampled_from(("m", "m", "m", "m", "other")),
            "messages": text.map(lambda words: [{"role": "user", "content": words}]),
            "prompt": text,
        },
        optional={
            "stream": st.booleans(),
            "stream_options": st.sampled_from(({}, {"include_usage": True}, {"include_usage": False})),
            "n": st.sampled_from((1, 2)),
            "seed": st.just(2**60),
            "temperature": st.just(1e-7),
        },
    )


@st.composite
def _scripts(draw: st.DrawFn) -> Script:
    status, kind, body = draw(_answers())
    head = [b"Content-Type: " + kind, *draw(st.lists(st.sampled_from(_REPLICA_HEADERS), unique=True))]
    if draw(st.integers(0, 4)) == 0 and body:
        head.append(b"Content-Encoding: gzip")
        body = gzip.compress(body, mtime=0)
    end, version = "keep", 1
    framing = draw(st.sampled_from(("length", "chunks", "chunks", "end")))
    if status == 204:
        body = b""
    elif framing == "length":
        head.append(b"Content-Length: %d" % len(body))
    elif framing == "chunks":
        trailers = draw(st.sampled_from((b"", b"X-Trailer: 1\r\n")))
        body = chunks(body, draw(_SEEDS), trailers)
        head.append(b"Transfer-Encoding: chunked")
    else:
        end, version = "close", draw(st.sampled_from((0, 1)))
    interim = draw(st.sampled_from((b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", _HINTS, _HINTS * 2)))
    first = b"HTTP/1.%d %d Any Reason\r\n" % (version, status)
    lines = b"".join(line + b"\r\n" for line in draw(st.permutations(head)))
    sent = interim + first + lines + b"\r\n" + body
    stop = None
    if draw(st.integers(0, 3)) == 0:
        stop, end = draw(st.integers(0, len(sent) - 1)), draw(st.sampled_from(("close", "close", "reset")))
    return Script(sent, draw(_SEEDS), stop, end)


_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


@st.composite
def _answers(draw: st.DrawFn) -> tuple[int, bytes, bytes]:
    """Draw a status, a content type and a body."""
    words = draw(st.lists(st.sampled_from(_WORDS), max_size=draw(st.sampled_from((3, 30)))))
    match draw(st.sampled_from(("json", "events", "events", "events", "text", "error", "none"))):
        case "json":
            told = {"choices": [{"message": {"content": " ".join(words)}}], "usage": {"prompt_tokens": 3}}
            return 200, b"application/json; charset=utf-8", json.dumps(told, ensure_ascii=False).encode()
        case "events":
            return 200, b"text/event-stream; charset=utf-8", draw(_events(words))
        case "text":
            size = draw(st.sampled_from((0, 1, 1000, 100_000)))
            return 200, b"application/octet-stream", bytes(range(256)) * (size // 256 + 1)
        case "error":
            status = draw(st.sampled_from((400, 401, 404, 422, 429, 500, 502, 503, 504)))
            kind = draw(st.sampled_from((b"application/json", b"text/html", b"text/event-stream")))
            return status, kind, json.dumps({"detail": words}).encode()
    return 204, b"text/plain", b""


@st.composite
def _events(draw: st.DrawFn, words: list[str]) -> bytes:
    """Draw a stream: ends of lines of any kind, comments, several lines of data, no blank at the end."""
    end = draw(st.sampled_from(_ENDS))
    blank = draw(st.sampled_from(("data: ", "data:")))
    events = []
    for word in words:
        told = {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]}
        events.append(blank + json.dumps(told, ensure_ascii=False))
    ended: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(words)}}
    last: tuple[dict[str, Any], ...] = draw(st.sampled_from(((ended, usage), (ended,), (usage,), ())))
    events.extend(blank + json.dumps(told) for told in last)
    events.extend(draw(st.sampled_from(((), ("data: [DONE]",), ("data:[DONE]",), ("data: {}", "id: 1")))))
    if draw(st.booleans()):
        events.insert(draw(st.integers(0, len(events))), f": ping{end}event: x{end}{blank}a{end}{blank}b")
    stream = (end * 2).join(events) + end * draw(st.sampled_from((0, 1, 2, 2, 2, 2)))
    return stream.encode()
