"""Replicas that join or leave move about one conversation in N, and none between those that stay."""

from __future__ import annotations

from typing import Any

from replica.app import start
from tests.integration.fleets import LiveFleet, echo_options, live_fleet

_CHATS = 240
_FLEET = {"warming_seconds": 0}


async def _homes(fleet: LiveFleet, router: int, turn: int = 1) -> dict[int, str]:
    homes = {}
    for chat in range(_CHATS):
        messages: list[dict[str, Any]] = [
            {"role": "user" if place % 2 == 0 else "assistant", "content": f"c{chat}p{place} " * 40}
            for place in range(2 * turn - 1)
        ]
        homes[chat] = (await fleet.chat(messages, router)).replica
    return homes


async def test_a_replica_that_joins_takes_its_share_and_no_more() -> None:
    """By hashing alone: a router that starts after the change, against one of before."""
    by_hash: dict[str, Any] = {"fleet": _FLEET, "policy": {"options": {"use_digests": False}}}
    async with live_fleet(4, **by_hash) as fleet:
        before = await _homes(fleet, 0)
        fleet.replicas.append(await start(echo_options("r4", None)))
        await fleet.add_router(**by_hash)
        after = await _homes(fleet, 1)
        moved = {chat for chat in before if after[chat] != before[chat]}
        assert {after[chat] for chat in moved} == {"r4"}
        # One in five, but for chance and near-ties.
        assert 0.10 <= len(moved) / _CHATS <= 0.30
        # And back: what it had returns to where it was.
        last = fleet.replicas.pop()
        await last.stop()
        await fleet.add_router(**by_hash)
        assert await _homes(fleet, 2) == before
        await fleet.routers.pop().stop()
        await fleet.routers.pop().stop()


async def test_running_conversations_stay_where_their_cache_is() -> None:
    # A hit must be worth more than a near-tie, or there is nothing to stay for.
    costs = {"base_seconds": 0.0005, "per_token_seconds": 1e-4, "per_token_context_seconds": 0}
    options: dict[str, Any] = {"fleet": _FLEET, "policy": {"options": {"near_tie_seconds": 0.001}}}
    replica = {"echo": {"prefill": costs}}
    async with live_fleet(4, replica=replica, **options) as fleet:
        before = await _homes(fleet, 0)
        await fleet.fresh_digests()
        fleet.replicas.append(await start(echo_options("r4", None, **replica)))
        # Another router, that remembers nothing: digests tell it.
        await fleet.add_router(**options)
        await fleet.fresh_digests(1)
        after = await _homes(fleet, 1, turn=2)
        moved = sum(after[chat] != before[chat] for chat in before)
        assert moved / _CHATS <= 0.05
        await fleet.replicas.pop().stop()
        await fleet.routers.pop().stop()
