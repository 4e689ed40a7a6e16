"""Leases: who says that it is there, for as long as it said, by Redis's own clock."""

from __future__ import annotations

import asyncio

from router.settings import NAME_PATTERN
from router.shared.connection import Connection
from router.shared.leases import MOST_LEASES, Leases, ReplicaLease
from tests.redis_server import redis_server


def lease(name: str, seconds: float = 30.0, draining: bool = False, uid: str = "") -> ReplicaLease:
    return ReplicaLease(name, f"http://{name}:8000", uid or f"{name}-1", seconds, draining)


async def test_a_lease_is_kept_changed_and_dropped() -> None:
    async with redis_server() as server, asyncio.timeout(20):
        connection = Connection(server.url, 2, 1)
        leases = Leases(connection, "p")
        assert await leases.read() == []
        assert await leases.keep(lease("a")) == "new"
        assert await leases.keep(lease("a")) == "renewed"
        assert await leases.keep(lease("a", draining=True)) == "changed"
        assert await leases.keep(lease("b")) == "new"
        found = {one.lease.name: one for one in await leases.read()}
        assert {name: one.lease.draining for name, one in found.items()} == {"a": True, "b": False}
        assert all(10 < one.remaining_seconds <= 30 for one in found.values())
        # Another group of the same Redis knows nothing of it.
        assert await Leases(connection, "q").read() == []
        await leases.drop(lease("a"))
        # For a moment every router can still see that it went of its own accord.
        found = {one.lease.name: one for one in await leases.read()}
        assert found["a"].lease.draining
        assert found["a"].remaining_seconds <= 2
        while len(await leases.read()) == 2:  # noqa: ASYNC110 - told by nobody
            await asyncio.sleep(0.02)
        assert [one.lease.uid for one in await leases.read()] == ["b-1"]
        # Nothing stays for ever, and all has one place in a cluster.
        keys = await connection.ask("KEYS", "*")
        assert keys
        for key in keys:
            assert b"{p}" in key
            assert await connection.ask("PTTL", key) > 0
        await connection.close()


async def test_a_lease_that_is_not_renewed_ends() -> None:
    async with redis_server() as server, asyncio.timeout(20):
        connection = Connection(server.url, 2, 1)
        leases = Leases(connection, "p")
        await leases.keep(lease("short", 0.2))
        await leases.keep(lease("long"))
        assert len(await leases.read()) == 2
        while len(await leases.read()) == 2:  # noqa: ASYNC110 - told by nobody
            await asyncio.sleep(0.02)
        assert [one.lease.name for one in await leases.read()] == ["long"]
        # The next one to keep its own sweeps as well.
        assert await connection.ask("HLEN", leases._keys[1]) == 1
        await connection.close()


async def test_what_others_put_there_is_no_lease() -> None:
    async with redis_server() as server, asyncio.timeout(20):
        connection = Connection(server.url, 2, 1)
        leases = Leases(connection, "p")
        await leases.keep(lease("a"))
        for number, told in enumerate(
            (
                "",
                "x",
                "[]",
                '{"name":"a"}',
                '{"name":"a b","url":"http://x:1","uid":"u","seconds":5}',
                '{"name":"a\\n","url":"http://x:1","uid":"u","seconds":5}',
                '{"name":"c","url":"http://user@x:1","uid":"u","seconds":5}',
                '{"name":"c","url":"ftp://x:1","uid":"u","seconds":5}',
                '{"name":"c","url":"http://x:1","uid":"u","seconds":0}',
                '{"name":"c","url":"http://x:1","uid":"%s","seconds":5}' % ("u" * 4096),
            )
        ):
            await connection.ask("ZADD", leases._keys[0], 1e15, f"bad{number}")
            await connection.ask("HSET", leases._keys[1], f"bad{number}", told)
        await connection.ask("ZADD", leases._keys[0], 1e15, "undescribed")
        assert [one.lease.name for one in await leases.read()] == ["a"]
        await connection.close()


async def test_there_is_room_for_so_many() -> None:
    async with redis_server() as server, asyncio.timeout(60):
        connection = Connection(server.url, 2, 1)
        leases = Leases(connection, "p")
        for number in range(MOST_LEASES):
            assert await leases.keep(lease("a", uid=f"u{number}")) == "new"
        assert await leases.keep(lease("a", uid="one-too-many")) == "full"
        assert await leases.keep(lease("a", uid="u7")) == "renewed"
        await connection.ask("ZREM", leases._keys[0], "u7")
        assert await leases.keep(lease("a", uid="one-too-many")) == "new"
        assert len(await leases.read()) == MOST_LEASES
        await connection.close()


def test_names_are_what_replicas_may_be_called() -> None:
    # The pattern in a lease is made of this one.
    assert NAME_PATTERN.endswith("$")
