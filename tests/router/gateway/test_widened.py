"""Replicas that warm have their share alone, and yet a request is sent to them before it is sent away."""

from __future__ import annotations

import asyncio

from aiohttp import web

from tests.router.gateway.relayed import answering, home_of
from tests.router.scripted import BODY, completion, rig, until


async def test_who_warms_is_asked_where_nobody_else_is_left() -> None:
    async with rig(2, fleet={"warming_seconds": 600}) as up:
        home = await home_of(up)
        (other,) = [replica for replica in up.replicas if replica.name != home]
        # It starts anew: from now on it warms, and one request at a time is its share.
        other.uid, other.serving_seconds = "another", 0.0
        await until(lambda: up.router.fleet.by_name(other.name).warms_until(0.0) > 0)  # type: ignore[union-attr]
        await up.ready(2)
        held = asyncio.Event()

        async def hold(request: web.Request) -> web.Response:
            await held.wait()
            return web.json_response(completion())

        other.answer = hold
        up.replica(home).answer = answering({"error": {"message": "full"}}, 503)
        first = asyncio.create_task(up.post())
        await until(lambda: other.running == 1)
        second = asyncio.create_task(up.post({**BODY, "user": "another"}))
        await until(lambda: other.running == 2)
        held.set()
        assert [(await first)[0], (await second)[0]] == [200, 200]
