"""Calibration on live fleets: replicas of unlike speed are told apart, with their own reports or without."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from replica.app import start
from router.wire.report import PrefillCost
from tests.integration.fleets import MODEL, LiveFleet, echo_options

FAST = {"base_seconds": 0.004, "per_token_seconds": 2e-5, "per_token_context_seconds": 0}
SLOW = {name: 4 * value for name, value in FAST.items()}
_WORDS = ("river", "mountain", "sea", "weather", "system", "prompt", "user", "fox", "dog", "cache", "three")


@asynccontextmanager
async def uneven_fleet(plain: bool) -> AsyncIterator[LiveFleet]:
    """Two fast echo replicas and a slow one; `plain` hides /state and timings, as other engines have none."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        fleet = LiveFleet(session, None)
        urls = []
        for name, prefill in (("fast-1", FAST), ("fast-2", FAST), ("slow", SLOW)):
            running = await start(echo_options(name, None, echo={"prefill": prefill}))
            stack.push_async_callback(running.stop)
            fleet.replicas.append(running)
            urls.append(await stack.enter_async_context(as_plain_engine(running.url, session)))
        listed = [
            {"name": replica.options.name, "url": url if plain else replica.url}
            for replica, url in zip(fleet.replicas, urls, strict=True)
        ]
        # Blind to speed, so that all are seen.
        router = await fleet.add_router(fleet={"replicas": listed}, policy={"name": "round_robin"})
        stack.push_async_callback(router.stop)
        yield fleet


@asynccontextmanager
async def as_plain_engine(url: str, session: aiohttp.ClientSession) -> AsyncIterator[str]:
    """Serve a replica as an engine does that has no /state and tells no timings."""

    async def chat(request: web.Request) -> web.StreamResponse:
        async with session.post(url + request.path, data=await request.read()) as answer:
            response = web.StreamResponse(headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk.replace(b'"timings"', b'"unknown"'))
            await response.write_eof()
            return response

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def health(request: web.Request) -> web.Response:
        return web.Response()

    application = web.Application()
    application.router.add_post("/v1/chat/completions", chat)
    application.router.add_get("/v1/models", models)
    application.router.add_get("/health", health)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def chats(fleet: LiveFleet, count: int, **fields: Any) -> None:
    """Send chats of some lengths, one after another."""
    draw = random.Random(5)
    for number in range(count):
        text = f"{number} " + " ".join(draw.choice(_WORDS) for _ in range(draw.choice((10, 200, 1500))))
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2, **fields}
        url = f"{fleet.routers[0].address}/v1/chat/completions"
        async with fleet.session.post(url, json=body) as response:
            assert response.status == 200
            await response.read()


async def metric(fleet: LiveFleet, name: str, replica: str) -> float:
    """Read one of the router's samples."""
    async with fleet.session.get(f"{fleet.routers[0].address}/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith(name + "{") and f'replica="{replica}"' in line:
                return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"there is no {name} of {replica}")


def seconds(fleet: LiveFleet, name: str) -> float:
    """What the router takes a prompt of 1,000 tokens to cost on a replica."""
    replica = fleet.routers[0].fleet.by_name(name)
    assert replica is not None
    cost: PrefillCost = replica.prefill_reading().cost
    return cost.seconds(1000, 0)


@pytest.mark.parametrize("plain", [False, True])
async def test_a_slow_replica_among_fast_ones_is_told_apart(plain: bool) -> None:
    async with uneven_fleet(plain) as fleet:
        # An engine that tells no timings is known by when its streams begin.
        await chats(fleet, 90, **({"stream": True} if plain else {}))
        first, second, slow = (seconds(fleet, name) for name in ("fast-1", "fast-2", "slow"))
        assert 2 < slow / max(first, second) < 8
        assert max(first, second) / min(first, second) < 1.6
        for name in ("fast-1", "fast-2", "slow"):
            assert await metric(fleet, "kvring_prefill_observations_total", name) == 30
            assert await metric(fleet, "kvring_prefill_prediction_error_ratio", name) < 2
            await metric(fleet, "kvring_prefill_prediction_bias_ratio", name)
            assert await metric(fleet, "kvring_prefill_coefficient_seconds", name) > 0


async def test_answers_that_come_whole_teach_nothing_where_no_time_is_told() -> None:
    async with uneven_fleet(plain=True) as fleet:
        before = seconds(fleet, "slow")
        await chats(fleet, 12)
        assert seconds(fleet, "slow") == before
