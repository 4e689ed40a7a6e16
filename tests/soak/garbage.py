"""Requests of the soak that nobody should serve: no JSON, no HTTP, and requests hidden within others."""

from __future__ import annotations

import asyncio
from random import Random

from tests.soak.asks import Violation, check_error
from tests.soak.wire import Broken, Wire

# A request that carries it was smuggled: no replica may ever see one.
SMUGGLED = "soak-smuggled"
_HIDDEN = (
    b"POST /v1/completions HTTP/1.1\r\nhost: soak\r\n"
    b"x-request-id: soak-smuggled\r\ncontent-length: 42\r\n\r\n"
    b'{"model":"m","prompt":"x","max_tokens":1 }'
)
# What errors say that are none of the router's making.
_BEFELL = ("path", "upstream_error", "timeout_error")
_HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: soak\r\nx-request-id: soak-garbage\r\n"
_LENGTH = b"content-length: %d\r\n" % len(_HIDDEN)


def _json(body: bytes) -> bytes:
    return _HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


_BAD_BODIES = (
    b"",
    b"{",
    b"[1,2]",
    b'{"model":"m"}',
    b'{"model":7,"prompt":"x"}',
    b'{"model":"nobodys","prompt":"x"}',
    b'{"model":"m","prompt":"x","max_tokens":-1}',
    b'{"model":"m","messages":[{"role":"user","content":"\\ud83d"}]}',
    b'{"model":"m","prompt":"\xff\xfe"}',
    b'{"model":"m","prompt":' + b"[" * 2000,
    b'{"model":"m","prompt":"x","temperature":NaN}',
    b"\x1f\x8b garbage that is no gzip",
)
# These may be for a replica to refuse, and whatever befalls others may befall them.
_BODIES = tuple(map(_json, _BAD_BODIES))
_SHAPES = (
    *_BODIES,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64,
    b"GARBAGE\r\n\r\n",
    b"POST /v1/completions HTTP/3.0\r\nhost: soak\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\n\r\n",
    _HEAD + b"x-large: " + b"x" * 40_000 + b"\r\n\r\n",
    _HEAD + b"content-length: 99999999999\r\n\r\n",
    _HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\n" + _HIDDEN,
    _HEAD + b"content-length: 6, 6\r\n\r\n" + _HIDDEN,
    _HEAD + b"content-length: +6\r\n\r\n" + _HIDDEN,
    _HEAD + _LENGTH + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + _HIDDEN,
    _HEAD + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + _HIDDEN,
    _HEAD + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + _HIDDEN,
    _HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + _HIDDEN,
    _HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + _HIDDEN,
    _HEAD + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + _HIDDEN,
    _HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n" + _HIDDEN,
    _HEAD + b"transfer-encoding: chunked\r\n\r\n-1\r\n" + _HIDDEN,
    _HEAD + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff1\r\n" + _HIDDEN,
    _HEAD + b" folded: x\r\ncontent-length: 0\r\n\r\n" + _HIDDEN[:20],
    _HEAD + b"x-nul: a\0b\r\ncontent-length: 0\r\n\r\n",
)


async def throw_garbage(port: int, random: Random) -> str:
    """Send one such request; return what came. Violation where that is anything but an error or the end."""
    raw = random.choice(_SHAPES)
    wire = await Wire.open(port)
    try:
        await wire.send(raw)
        async with asyncio.timeout(10):
            head = await wire.head()
            body = b"".join([piece async for piece in wire.body(head)])
    except Broken:
        return "the end"
    except TimeoutError as error:
        raise Violation(f"nobody answers {raw[:200]!r}") from error
    finally:
        wire.close()
    code = check_error("garbage", head.status, body)
    if head.status in (500, 502, 504) and not (raw in _BODIES and code in _BEFELL):
        raise Violation(f"{head.status} {body[:200]!r} to {raw[:200]!r}")
    return str(head.status)
