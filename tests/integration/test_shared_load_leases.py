"""Replicas found by the leases they hold in Redis: they come, drain and go, and outlive Redis."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import aiohttp
from pydantic import SecretStr

from replica.app import RunningReplica, start
from router.app import Router
from router.config import RouterConfig
from tests.integration.fleets import LiveFleet, echo_options
from tests.redis_server import redis_server
from tests.router.scripted import until


async def leased(name: str, url: SecretStr) -> RunningReplica:
    lease = {"redis": url.get_secret_value(), "group": "p", "seconds": 0.6}
    return await start(echo_options(name, None, lease=lease, linger_seconds=0.3))


async def finding(url: SecretStr) -> Router:
    """Start a router that knows of no replica but by leases."""
    router = Router(
        RouterConfig.load(
            flags={
                "listen": {"port": 0},
                "redis": {"url": url.get_secret_value(), "group": "p", "longest_pause_seconds": 0.2},
                "fleet": {
                    "leases": {"enabled": True, "refresh_seconds": 0.1},
                    "state_poll_seconds": 0.05,
                    "warming_seconds": 0,
                },
                "observe": {"access_log": False},
            }
        )
    )
    await router.start()
    return router


async def test_a_fleet_is_found_and_kept_through_an_empty_redis() -> None:
    async with redis_server() as server, AsyncExitStack() as stack, asyncio.timeout(60):
        session = await stack.enter_async_context(aiohttp.ClientSession())
        fleet = LiveFleet(session, None)
        for name in ("a", "b", "c"):
            fleet.replicas.append(await leased(name, server.url))
            stack.push_async_callback(fleet.replicas[-1].stop)
        for _ in range(2):
            fleet.routers.append(await finding(server.url))
            stack.push_async_callback(fleet.routers[-1].stop)

        def found(count: int) -> bool:
            return all(router.fleet.routable_count == count for router in fleet.routers)

        async def ask(times: int) -> set[str]:
            served = set()
            for number in range(times):
                said = [{"role": "user", "content": f"{number}: tell me of the sea. " * 9}]
                reply = await fleet.chat(said, number % 2)
                assert reply.status == 200
                served.add(reply.replica)
            return served

        await until(lambda: found(3))
        assert await ask(40) == {"a", "b", "c"}
        await server.restart()
        # Longer than a lease: nobody is missed, and the same replicas are still the same.
        lives = {one.uid for one in fleet.routers[0].fleet.replicas}
        for _ in range(10):
            assert await ask(4)
            assert found(3)
            await asyncio.sleep(0.1)
        assert {one.uid for one in fleet.routers[0].fleet.replicas} == lives
        # One drains: it is left before it stops listening, and no request fails.
        draining = asyncio.create_task(fleet.replicas[0].drain())
        await until(lambda: found(2))
        assert await ask(20) == {"b", "c"}
        await draining
        await fleet.replicas[0].stop()
        await until(lambda: all(len(router.fleet.replicas) == 2 for router in fleet.routers))
        # One more, while Redis is away, is found when it is back.
        await server.kill()
        fleet.replicas.append(await leased("d", server.url))
        stack.push_async_callback(fleet.replicas[-1].stop)
        assert await ask(8) == {"b", "c"}
        await server.start()
        await until(lambda: found(3))
