"""Redis refused, silent, frozen, killed, emptied or read-only: routers start and serve as without it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import SecretStr

from router.app import Router
from tests.integration.fleets import LiveFleet, live_fleet
from tests.integration.plain_fleet import plain_fleet
from tests.redis_server import RedisServer, black_hole, read_only_server, redis_server
from tests.router.scripted import until

TEXTS = [f"Number {number}, tell me of the sea. " * 12 for number in range(24)]
HASHING = {"name": "affinity", "options": {"use_digests": False}}


def sharing(url: SecretStr, **changes: Any) -> dict[str, Any]:
    options = {"timeout_seconds": 0.05, "publish_seconds": 0.02, "longest_pause_seconds": 0.2}
    return {"url": url.get_secret_value(), **options, "expire_seconds": 1, **changes}


async def homes(fleet: LiveFleet, routers: int) -> dict[str, str]:
    """Who serves each text when all is quiet; every one of them must be answered by all routers alike."""
    found: dict[str, str] = {}
    for router in range(routers):
        for text in TEXTS:
            reply = await fleet.chat([{"role": "user", "content": text}], router)
            assert reply.status == 200
            assert found.setdefault(text, reply.replica) == reply.replica
    return found


@asynccontextmanager
async def broken_redis(kind: str) -> AsyncIterator[SecretStr]:
    """A Redis that cannot be used, in one of many ways."""
    if kind == "silent":
        async with black_hole() as url:
            yield url
    elif kind == "read-only":
        async with read_only_server() as server:
            yield server.url
    else:
        async with redis_server() as server:
            if kind == "refused":
                await server.kill()
            if kind == "frozen":
                server.stop_answering()
            yield server.url


@pytest.mark.parametrize("kind", ["refused", "silent", "frozen", "read-only"])
async def test_routers_start_and_serve_alike_whatever_redis_does(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvring.shared")
    async with live_fleet(3, routers=1, policy=HASHING) as fleet, asyncio.timeout(60):
        alone = await homes(fleet, 1)
        async with broken_redis(kind) as url:
            for _ in range(2):
                await fleet.add_router(policy=HASHING, redis=sharing(url))
            try:
                assert await homes(fleet, 3) == alone
                async with fleet.session.get(f"{fleet.routers[2].address}/readyz") as response:
                    assert response.status == 200
                async with fleet.session.get(f"{fleet.routers[2].address}/metrics") as response:
                    assert "\nkvring_redis_up 0.0\n" in await response.text()
            finally:
                for router in fleet.routers[1:]:
                    await router.stop()
    # One line of each of the two, however often it was tried.
    lines = [record.getMessage() for record in caplog.records if record.name == "kvring.shared"]
    assert ["cannot be used" in line for line in lines] == [True, True]


async def kill(server: RedisServer) -> None:
    await server.kill()


async def freeze(server: RedisServer) -> None:
    server.stop_answering()


async def refuse_writes(server: RedisServer) -> None:
    await server.run("REPLICAOF", "127.0.0.1", 9)


async def start(server: RedisServer) -> None:
    await server.start()


async def thaw(server: RedisServer) -> None:
    server.answer_again()


async def accept_writes(server: RedisServer) -> None:
    await server.run("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize(("harm", "mend"), [(kill, start), (freeze, thaw), (refuse_writes, accept_writes)])
async def test_requests_under_way_notice_nothing(
    harm: Any, mend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvring.shared")
    async with redis_server() as server:
        redis = sharing(server.url)
        async with live_fleet(3, routers=2, policy=HASHING, redis=redis) as fleet, asyncio.timeout(60):

            def all_up(up: bool) -> bool:
                return all(redis_up(router) == up for router in fleet.routers)

            await until(lambda: all_up(True))
            before = await homes(fleet, 2)
            done = False
            statuses: list[int] = []

            async def keep_asking(router: int) -> None:
                number = 0
                while not done:
                    number += 1
                    text = TEXTS[number % len(TEXTS)]
                    reply = await fleet.chat([{"role": "user", "content": text}], router)
                    statuses.append(reply.status)
                    assert reply.replica == before[text]

            async with asyncio.TaskGroup() as group:
                for router in range(2):
                    group.create_task(keep_asking(router))
                for change, up in ((harm, False), (mend, True)):
                    so_far = len(statuses)
                    await change(server)
                    await until(lambda up=up: all_up(up))  # type: ignore[misc]
                    await until(lambda so_far=so_far: len(statuses) > so_far + 20)  # type: ignore[misc]
                done = True
            assert set(statuses) == {200}
            assert await homes(fleet, 2) == before
    lines = [record.getMessage() for record in caplog.records if record.name == "kvring.shared"]
    # Up, down, up: a line of each router for each change.
    assert sum("cannot be used" in line for line in lines) == 2
    assert sum("answers" in line for line in lines) == 4
    assert len(lines) == 6


async def test_counts_of_others_fade_and_come_back_with_redis() -> None:
    async with (
        redis_server() as server,
        plain_fleet(2, 2, server.url, policy={"name": "least_requests"}) as fleet,
        asyncio.timeout(60),
    ):
        for number in range(6):
            fleet.send(0, f"held {number}")
        await until(lambda: sum(fleet.in_flight()) == 6)
        await until(lambda: fleet.known(1) == [3, 3])
        await server.kill()
        await until(lambda: fleet.known(1) == [0, 0])
        # Its own it knows all along.
        assert fleet.known(0) == [3, 3]
        await server.start()
        await fleet.all_known()
        assert fleet.known(1) == [3, 3]
        # A router that goes takes its counts along.
        assert set(await fleet.let_all_go()) == {200}
        await until(lambda: fleet.known(1) == [0, 0])


async def test_no_request_asks_redis_anything() -> None:
    """As many commands while a hundred requests are served as while there is none."""
    async with redis_server() as server:
        redis = sharing(server.url, publish_seconds=10, expire_seconds=60)
        async with live_fleet(2, routers=1, redis=redis) as fleet, asyncio.timeout(60):
            await until(lambda: redis_up(fleet.routers[0]) == 1)
            commands = await count_commands(server)
            for text in TEXTS * 4:
                assert (await fleet.chat([{"role": "user", "content": text}])).status == 200
            # The count itself is one, and sharing may have had its turn.
            assert await count_commands(server) - commands <= 4


def redis_up(router: Router) -> float | None:
    return router.metrics.registry.get_sample_value("kvring_redis_up")


async def count_commands(server: RedisServer) -> int:
    told = await server.run("INFO", "stats")
    assert isinstance(told, dict)
    return int(told["total_commands_processed"])
