"""Streams that last longer than any limit: limits are on silence, and a client's is not its replica's."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from aiohttp import web

from tests.router.gateway.relayed import EVENTS, STREAM
from tests.router.http.alone import connect, post
from tests.router.scripted import chunk, rig, stream

_SHORT = dict.fromkeys(
    ("first_byte_seconds", "idle_seconds", "body_seconds", "header_seconds", "connect_seconds"), 0.4
)
_LONG_BYTES = 20_000_000
_DONE = b"data: [DONE]\n\n"


async def test_a_stream_may_last_longer_than_every_limit() -> None:
    async with rig(1, limits={**_SHORT, "write_seconds": 0.4, "idle_client_seconds": 0.4}) as up:
        up.replicas[0].answer = lambda request: stream(request, EVENTS, 0.05)
        status, body, _ = await up.post(STREAM)
        assert (status, body) == (200, b"".join(EVENTS))


async def test_a_replica_is_not_blamed_for_the_silence_of_its_client() -> None:
    async with rig(1, limits=_SHORT) as up:

        async def long(request: web.Request) -> web.StreamResponse:
            event = chunk("x" * 50_000)
            return await stream(request, [event] * (_LONG_BYTES // len(event)) + [chunk("", "stop"), _DONE])

        up.replicas[0].answer = long
        loop = asyncio.get_running_loop()
        client = await connect(urlsplit(up.router.address).port or 0, 65536)
        await loop.sock_sendall(client, post(STREAM))
        await asyncio.sleep(1.5)
        read, tail = 0, b""
        async with asyncio.timeout(20):
            while _DONE not in tail:
                piece = await loop.sock_recv(client, 1 << 20)
                assert piece
                read += len(piece)
                tail = (tail + piece)[-200:]
        assert read > 0.9 * _LONG_BYTES
        client.close()
        assert await up.metric("kvring_requests_total", outcome="ok") == 1
