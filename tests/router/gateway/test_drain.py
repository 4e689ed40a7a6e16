"""Short answers that nobody wants are read: whoever turns requests away keeps its connection."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from tests.router.gateway.relayed import home_of
from tests.router.scripted import rig


@pytest.mark.parametrize("late", [False, True])
async def test_who_turns_requests_away_keeps_its_connection(late: bool) -> None:
    connections = set()

    async def full(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        connections.add(request.transport.get_extra_info("peername"))
        response = web.StreamResponse(status=429, headers={"Content-Length": "30"})
        await response.prepare(request)
        for piece in (b" " * 10, b" " * 20):
            await response.write(piece)
            await asyncio.sleep(0.01 * late)
        return response

    async with rig(2) as up:
        up.replica(await home_of(up)).answer = full
        for _ in range(8):
            assert (await up.post())[0] == 200
        assert len(connections) == 1


async def test_a_long_answer_that_nobody_wants_is_not_waited_for() -> None:
    over = asyncio.Event()

    async def full(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=503)
        await response.prepare(request)
        try:
            for _ in range(1000):
                await response.write(b" " * 1000)
                await asyncio.sleep(0.02)
        finally:
            over.set()
        return response

    async with rig(2) as up:
        up.replica(await home_of(up)).answer = full
        assert (await up.post())[0] == 200
        await asyncio.wait_for(over.wait(), 5)
