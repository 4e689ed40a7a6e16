"""Several routers on one fleet, with Redis and without: counts, bounds, herds, and agreement."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from pydantic import SecretStr

from tests.integration.fleets import LiveFleet, live_fleet
from tests.integration.plain_fleet import PlainFleet, plain_fleet
from tests.redis_server import redis_server
from tests.router.scripted import until

HOT = "Tell me of the sea, and of all that lives in it. " * 40


async def send_evenly(fleet: PlainFleet, count: int, policy_sees_all: bool, text: str = HOT) -> None:
    """Send one after the other, through each router in turn; where load is shared, all know of each first."""
    for number in range(count):
        before = sum(fleet.in_flight())
        fleet.send(number % len(fleet.routers), text)
        await until(lambda before=before: sum(fleet.in_flight()) == before + 1)  # type: ignore[misc]
        if policy_sees_all:
            await fleet.all_known()


@pytest.mark.parametrize("routers", [2, 4])
async def test_every_router_knows_what_all_have(routers: int) -> None:
    async with (
        redis_server() as server,
        plain_fleet(3, routers, server.url, policy={"name": "round_robin"}) as fleet,
        asyncio.timeout(30),
    ):
        await send_evenly(fleet, 4 * routers, policy_sees_all=True)
        own = [one.load.in_flight for router in fleet.routers for one in router.fleet.replicas]
        assert sum(own) == sum(fleet.known(0)) == 4 * routers
        async with fleet.session.get(f"{fleet.routers[0].address}/metrics") as response:
            lines = (await response.text()).splitlines()
        assert "kvring_redis_up 1.0" in lines
        assert f"kvring_shared_routers {routers - 1}.0" in lines
        assert set(await fleet.let_all_go()) == {200}
        # All that was counted is counted out.
        await fleet.all_known()
        assert fleet.known(0) == [0, 0, 0]


@pytest.mark.parametrize(
    ("policy", "options", "most"),
    [
        # Of 32 on 4 replicas: a bound of 1.25 is 10, and each request that comes is counted before it goes.
        ("prefix_ring", {"load_bound": 1.25}, 10),
        ("chwbl", {"mean_load_percent": 125}, 10),
        ("least_requests", {}, 8),
        # The busiest is left alone once it has more than 8 above the idlest, so it may have 9: 14, 6, 6, 6.
        ("cache_aware", {"balance_abs_threshold": 8, "balance_rel_threshold": 1.1}, 14),
    ],
)
@pytest.mark.parametrize("routers", [1, 4])
async def test_bounds_hold_for_the_sum_of_all_routers(
    policy: str, options: dict[str, Any], most: int, routers: int
) -> None:
    async with (
        redis_server() as server,
        plain_fleet(4, routers, server.url, policy={"name": policy, "options": options}) as fleet,
        asyncio.timeout(30),
    ):
        await send_evenly(fleet, 32, policy_sees_all=True)
        assert max(fleet.in_flight()) <= most
        assert set(await fleet.let_all_go()) == {200}


async def test_without_redis_what_replicas_report_keeps_the_bound() -> None:
    """Each of four routers sees a fourth of the traffic; the sum is bounded all the same."""
    policy = {"name": "prefix_ring", "options": {"load_bound": 1.25}}
    slow = {"echo": {"decode_seconds": 0.3}}
    async with live_fleet(4, routers=4, replica=slow, policy=policy) as fleet, asyncio.timeout(30):
        chats: list[asyncio.Task[Any]] = []
        for number in range(16):
            chats.append(asyncio.create_task(fleet.chat(said(HOT), number % 4, max_tokens=64)))
            await until(lambda count=number + 1: all_report(fleet, count))  # type: ignore[misc]
        # 1.25 of 16 on 4 replicas; two of each router's own four would be 8.
        assert max(in_flight(fleet)) <= 5
        for chat in chats:
            chat.cancel()
        await asyncio.gather(*chats, return_exceptions=True)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("routers", [1, 2, 4])
async def test_a_burst_within_one_poll_is_spread(routers: int, shared: bool) -> None:
    """64 prompts that share nothing, all at once, to four idle replicas that are looked at once a second."""
    slow = {"echo": {"decode_seconds": 0.02}}
    fleet_options = {"state_poll_seconds": 1.0, "idle_poll_seconds": 1.0}
    async with redis_server() as server:
        url = server.url if shared else SecretStr("")
        redis = {"url": url.get_secret_value()}
        async with (
            live_fleet(4, routers=routers, replica=slow, fleet=fleet_options, redis=redis) as fleet,
            asyncio.timeout(30),
        ):
            texts = distinct(64)
            replies = await asyncio.gather(
                *(fleet.chat(said(text), number % routers) for number, text in enumerate(texts))
            )
            assert {reply.status for reply in replies} == {200}
            by_replica = Counter(reply.replica for reply in replies)
            assert max(by_replica.values()) <= 1.5 * 64 / 4, by_replica


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("routers", [2, 4])
async def test_routers_agree_where_idle_replicas_are_home(routers: int, shared: bool) -> None:
    async with redis_server() as server:
        url = server.url if shared else SecretStr("")
        redis = {"url": url.get_secret_value(), "publish_seconds": 0.05}
        without = {"name": "affinity", "options": {"use_digests": False}}
        async with (
            live_fleet(4, routers=routers, redis=redis, policy=without) as fleet,
            asyncio.timeout(30),
        ):
            texts = distinct(40)
            homes = {
                text: (await fleet.chat(said(text), n % routers)).replica for n, text in enumerate(texts)
            }
            assert len(set(homes.values())) == 4
            for number, text in enumerate(texts):
                assert (await fleet.chat(said(text), (number + 1) % routers)).replica == homes[text]
            # One router less: nobody's home changes.
            await fleet.routers[0].stop()
            for number, text in enumerate(texts):
                router = 1 + number % (routers - 1)
                assert (await fleet.chat(said(text), router)).replica == homes[text]


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def distinct(count: int) -> list[str]:
    draw = Random(4)
    return [" ".join(f"{draw.getrandbits(40):x}" for _ in range(40)) for _ in range(count)]


def in_flight(fleet: LiveFleet) -> list[int]:
    return [replica.service.leased for replica in fleet.replicas]


def all_report(fleet: LiveFleet, count: int) -> bool:
    """Whether every router has heard from the replicas of so many requests."""
    for router in fleet.routers:
        views = [replica.load.view(0.0) for replica in router.fleet.replicas]
        if sum(view.running + view.waiting for view in views) != count:
            return False
    return True
