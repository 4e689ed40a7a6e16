"""Lease members: a list that follows the replicas, and stands while Redis is silent or has forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from replica.lease import LeaseKeeper
from replica.lease_options import LeaseOptions as KeeperOptions
from router.config import LeaseOptions
from router.fleet.members import Member
from router.fleet.sources.leases import LeaseMembers
from router.shared.connection import Connection, Unreachable
from router.shared.leases import Leases, ReplicaLease
from tests.redis_server import RedisServer, black_hole, redis_server
from tests.router.scripted import until


class Watched:
    """All lists that one router was told, the last one last."""

    def __init__(self, server: RedisServer, refresh_seconds: float) -> None:
        self.connection = Connection(server.url, 0.5, 0.1)
        self.leases = Leases(self.connection, "p")
        self.lists: list[Sequence[Member]] = []
        source = LeaseMembers(LeaseOptions(enabled=True, refresh_seconds=refresh_seconds), self.leases)
        self._task = asyncio.create_task(self._watch(source))

    @property
    def names(self) -> list[str | None]:
        return [member.name for member in self.lists[-1]] if self.lists else []

    @property
    def uids(self) -> list[str]:
        return [member.uid for member in self.lists[-1]] if self.lists else []

    async def _watch(self, source: LeaseMembers) -> None:
        async for members in source.watch():
            self.lists.append(members)

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self.connection.close()


@asynccontextmanager
async def watched(refresh_seconds: float = 0.05) -> AsyncIterator[tuple[RedisServer, Watched]]:
    async with redis_server() as server, asyncio.timeout(40):
        watching = Watched(server, refresh_seconds)
        try:
            yield server, watching
        finally:
            await watching.stop()


def keeper(server: RedisServer, name: str, port: int = 8000, seconds: float = 1.0) -> LeaseKeeper:
    options = KeeperOptions(redis=server.url, group="p", seconds=seconds)
    one = LeaseKeeper(options, name, f"{name}-uid")
    one.start("127.0.0.1", port)
    return one


async def test_replicas_come_drain_and_go() -> None:
    async with watched() as (server, router):
        await until(lambda: router.lists == [[]])
        one, other = keeper(server, "a", 1), keeper(server, "b", 2)
        await until(lambda: router.names == ["a", "b"])
        assert router.lists[-1][0] == Member("http://127.0.0.1:1", "a", "a-uid")
        one.drain()
        await until(lambda: router.lists[-1][0].draining)
        told = len(router.lists)
        await asyncio.sleep(0.3)
        # What did not change is not told again.
        assert len(router.lists) == told
        await one.stop()
        await until(lambda: router.names == ["b"])
        # Without a drain too: it says so on its way out.
        await other.stop()
        await until(lambda: router.names == [])


async def test_one_that_died_is_gone_when_its_lease_is_over() -> None:
    async with watched() as (_, router):
        await router.leases.keep(ReplicaLease("dead", "http://h:1", "u", 0.4))
        await until(lambda: router.names == ["dead"])
        await until(lambda: router.names == [])


async def test_a_hint_comes_before_the_next_reading() -> None:
    async with watched(refresh_seconds=60) as (server, router):
        await until(lambda: router.lists == [[]])
        # Told by nobody who listens.
        while not (await _numbers(server, router.leases.channel))[1]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        # A minute is more than this waits.
        one = keeper(server, "a")
        await until(lambda: router.names == ["a"])
        await one.stop()
        await until(lambda: router.names == [])


async def test_redis_restarted_empty_takes_nobody_out() -> None:
    async with watched() as (server, router):
        keepers = [keeper(server, name, port) for port, name in enumerate("abc", 1)]
        await until(lambda: router.names == ["a", "b", "c"])
        for _ in range(2):
            await server.restart()
            await until(lambda: router.connection.up and router.connection.up_seconds > 1.5)
        await server.run("FLUSHALL")
        await asyncio.sleep(1.2)
        # Nobody was out for a moment.
        sizes = [len(members) for members in router.lists]
        assert sizes == sorted(sizes)
        assert sizes[-1] == 3
        for one in keepers:
            await one.stop()
        await until(lambda: router.names == [])


async def test_after_an_outage_the_dead_get_their_time_and_no_more() -> None:
    async with watched() as (server, router):
        alive = keeper(server, "alive", 1, seconds=0.6)
        await router.leases.keep(ReplicaLease("dead", "http://h:1", "u", 0.6))
        await until(lambda: router.names == ["alive", "dead"])
        await server.kill()
        # Longer than any lease: the list stands all the same.
        await asyncio.sleep(1.0)
        assert router.names == ["alive", "dead"]
        await server.start()
        await until(lambda: router.names == ["alive"])
        await alive.stop()
        seen = [[member.name for member in members] for members in router.lists]
        assert [] not in seen[seen.index(["alive", "dead"]) :]


async def test_a_frozen_redis_leaves_the_list_as_it_is() -> None:
    async with watched() as (server, router):
        one = keeper(server, "a", seconds=0.6)
        await until(lambda: router.names == ["a"])
        server.stop_answering()
        await until(lambda: not router.connection.up)
        await asyncio.sleep(1.0)
        assert router.names == ["a"]
        server.answer_again()
        await until(lambda: router.connection.up_seconds > 0.8)
        assert router.names == ["a"]
        await one.stop()


async def test_another_life_at_the_same_address_takes_its_place() -> None:
    async with watched() as (_, router):
        await router.leases.keep(ReplicaLease("a", "http://h:1", "first", 30))
        await until(lambda: router.uids == ["first"])
        await asyncio.sleep(0.01)
        await router.leases.keep(ReplicaLease("a", "http://h:1", "second", 30))
        await until(lambda: router.uids == ["second"])


async def test_leases_of_a_silent_redis_harm_nobody() -> None:
    async with black_hole() as url, asyncio.timeout(20):
        one = LeaseKeeper(KeeperOptions(redis=url, seconds=0.3), "a", "u")
        one.start("0.0.0.0", 1)
        await asyncio.sleep(0.5)
        one.drain()
        await one.stop()
        leases = Leases(Connection(url, 0.05, 1), "p")
        with suppress(Unreachable):
            await leases.read()
        await leases.connection.close()


async def _numbers(server: RedisServer, channel: str) -> list[object]:
    told = await server.run("PUBSUB", "NUMSUB", channel)
    assert isinstance(told, list)
    return told
