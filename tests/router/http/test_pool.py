"""The pool keeps nothing of places that nobody is connected to any more."""

from __future__ import annotations

import asyncio

import pytest

from router.config import LimitOptions
from router.http.failures import Vanished
from router.http.pool import Pool

_HEAD = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


async def test_a_place_whose_last_connection_died_in_use_is_forgotten() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    replica = await asyncio.start_server(once, "127.0.0.1", 0)
    limits = LimitOptions()
    pool = Pool(lambda: limits)
    origin = pool.origin(f"http://127.0.0.1:{replica.sockets[0].getsockname()[1]}")
    await pool.send(origin, [_HEAD], len(_HEAD))
    await asyncio.sleep(0)
    assert (pool.idle, list(pool._idle)) == (1, [origin])
    with pytest.raises(Vanished):
        await pool.send(origin, [_HEAD], len(_HEAD))
    assert list(pool._idle) == []
    await pool.close()
    replica.close()
