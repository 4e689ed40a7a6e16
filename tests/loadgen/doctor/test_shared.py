"""What is beside the fleet: Redis, real and feigned, and clocks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadgen.doctor.evidence import Evidence, RedisSeen, ReplicaSeen
from loadgen.doctor.finding import Verdict
from loadgen.doctor.reach import Skew
from router.config import RouterConfig
from router.shared.connection import Connection
from router.shared.leases import Leases, ReplicaLease
from tests.loadgen.doctor.patient import (
    NOTE,
    WARNING,
    WRONG,
    diagnose,
    look,
    router,
    serving,
    severities,
    verdict,
    write,
)
from tests.redis_server import black_hole, read_only_server, redis_server
from tests.router.scripted import ScriptedReplica, rig


async def examine(directory: Path, url: str, **redis: Any) -> Verdict:
    diagnosis = await diagnose(write(directory, redis={"url": url, **redis}))
    assert "hunter2" not in str(diagnosis.to_json())
    return verdict(diagnosis, "redis")


async def test_a_redis_that_is_well(tmp_path: Path) -> None:
    async with redis_server() as server:
        await server.run("ZADD", "kvring:{kvring}:leases", 2_000_000_000_000, "u")
        found = await examine(tmp_path, server.url.get_secret_value(), timeout_seconds=5)
        # Nothing was changed.
        assert await server.run("ZCARD", "kvring:{kvring}:leases") == 1
        assert await server.run("DBSIZE") == 1
    assert found.looked
    assert not found.findings


async def test_a_redis_that_is_not_there(tmp_path: Path) -> None:
    found = await examine(tmp_path, "redis://user:hunter2@127.0.0.1:9/0")
    assert severities(found) == [WRONG]
    assert found.findings[0].seen.startswith("127.0.0.1:9: ")


async def test_a_redis_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.doctor.ask_redis.TIMEOUT_SECONDS", 0.1)
    async with black_hole() as url, asyncio.timeout(10):
        assert severities(await examine(tmp_path, url.get_secret_value())) == [WRONG]


async def test_a_redis_that_wants_a_password(tmp_path: Path) -> None:
    async with redis_server("--requirepass", "hunter2") as server:
        place = server.url.get_secret_value().removeprefix("redis://")
        for user in ("", ":wrong@"):
            found = await examine(tmp_path, f"redis://{user}{place}", timeout_seconds=5)
            assert severities(found) == [WRONG]
            assert "password" in found.findings[0].mend
        assert not (await examine(tmp_path, f"redis://:hunter2@{place}", timeout_seconds=5)).findings


async def test_a_redis_that_takes_no_writes(tmp_path: Path) -> None:
    async with redis_server() as primary, redis_server() as copy:
        await copy.run("REPLICAOF", "127.0.0.1", primary.port)
        found = await examine(tmp_path, copy.url.get_secret_value(), timeout_seconds=5)
    assert severities(found) == [WRONG]
    assert "primary" in found.findings[0].mend
    async with read_only_server() as server:
        assert severities(await examine(tmp_path, server.url.get_secret_value(), timeout_seconds=5)) == [
            WRONG
        ]


def of(url: str, seen: RedisSeen | None = None, **fields: Any) -> Verdict:
    config = RouterConfig.load(flags={"redis": {"url": url, "timeout_seconds": 0.1}})
    return look(
        Evidence(config=config, redis=seen or RedisSeen("there", ask_seconds=0.001), **fields), "redis"
    )


@pytest.mark.parametrize(("seconds", "found"), [(0.001, []), (0.06, [WARNING]), (0.3, [WRONG])])
def test_a_redis_that_is_slow(seconds: float, found: list[str]) -> None:
    assert severities(of("redis://127.0.0.1", RedisSeen("there", ask_seconds=seconds))) == found


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("redis://127.0.0.1", []),
        ("unix:///run/redis.sock", []),
        ("redis://redis.internal", [WARNING]),
        ("redis://:hunter2@redis.internal", [NOTE]),
        ("rediss://:hunter2@redis.internal", []),
    ],
)
def test_a_redis_over_the_network(url: str, found: list[str]) -> None:
    assert severities(of(url)) == found


def test_a_redis_that_only_the_router_cannot_reach() -> None:
    assert severities(of("redis://127.0.0.1", router=router(redis_up=False))) == [WRONG]
    assert not of("redis://127.0.0.1", router=router(redis_up=True)).findings
    # As seen without a configuration, too.
    assert severities(look(Evidence(router=router(redis_up=False)), "redis")) == [WRONG]
    assert not look(Evidence(router=router()), "redis").looked


async def test_members_by_leases(tmp_path: Path) -> None:
    replica = ScriptedReplica("leased")
    await replica.start()
    try:
        async with redis_server() as server:
            connection = Connection(server.url, 5, 1)
            lease = ReplicaLease(name="leased", url=replica.url, uid="u", seconds=60)
            await Leases(connection, "kvring").keep(lease)
            await connection.close()
            redis = {"url": server.url.get_secret_value()}
            diagnosis = await diagnose(write(tmp_path, redis=redis, fleet={"leases": {"enabled": True}}))
    finally:
        await replica.stop()
    assert verdict(diagnosis, "members").seen == "1 member"
    assert not verdict(diagnosis, "members").findings
    assert verdict(diagnosis, "replicas").seen == "1 of 1 replica asked"


@pytest.mark.parametrize(("ahead", "found"), [(0, []), (1, []), (60, [WARNING]), (-60, [WARNING])])
async def test_clocks_that_differ(tmp_path: Path, ahead: int, found: list[str]) -> None:
    async def late(request: web.Request) -> web.Response:
        date = format_datetime(datetime.now(UTC) + timedelta(seconds=ahead), usegmt=True)
        return web.json_response({}, status=503, headers={"Date": date})

    async with rig(1) as fleet, serving(web.get("/{rest:.*}", late)) as url:
        listed = {"r0": fleet.replicas[0].url, "late": url}
        told = verdict(await diagnose(write(tmp_path, listed), fleet.router.address), "clocks")
    assert told.looked
    assert severities(told) == found
    assert all("late" in finding.title and f"{ahead:+}" in finding.seen for finding in told.findings)


def test_a_clock_of_our_own_that_is_off() -> None:
    def seen(*seconds: float) -> Verdict:
        replicas = (ReplicaSeen("u", f"r{at}", skew=Skew(by, 0.5)) for at, by in enumerate(seconds))
        return look(Evidence(replicas=tuple(replicas)), "clocks")

    assert "this machine differs from all" in seen(90.0, 91.0).findings[0].title
    assert "r0" in seen(90.0, 0.0).findings[0].title
    assert not seen(2.4, -2.4).findings
    assert not look(Evidence(), "clocks").looked
