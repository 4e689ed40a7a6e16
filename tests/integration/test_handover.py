"""A replica that drains hands its hot prefixes over: its conversations find them at their new homes."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from router.fleet.health import Standing
from tests.integration.fleets import LiveFleet, live_fleet
from tests.router.scripted import until

_CHATS, _TURNS = 18, 3


def _messages(chat: int, turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief. " * 20}]
    for turn in range(turns):
        messages.append(
            {"role": "user", "content": f"Question {turn} of chat {chat}: " + f"w{chat}x{turn} " * 40}
        )
        if turn < turns - 1:
            messages.append({"role": "assistant", "content": f"Answer {turn}. " * 10})
    return messages


def _handed_over(fleet: LiveFleet, result: str) -> float:
    total = 0.0
    for router in fleet.routers:
        for metric in router.metrics.handover_prefixes.collect():
            total += sum(
                s.value for s in metric.samples if s.labels.get("result") == result and "_total" in s.name
            )
    return total


@pytest.mark.parametrize("prefill_tokens", [65_536, 0])
async def test_conversations_of_a_replica_that_drains_find_their_cache(prefill_tokens: int) -> None:
    options: dict[str, Any] = {"fleet": {"handover": {"prefill_tokens": prefill_tokens}}}
    async with live_fleet(3, routers=2, replica={"linger_seconds": 1.0}, **options) as fleet:
        homes: Counter[str] = Counter()
        served: dict[int, str] = {}
        for turn in range(1, _TURNS + 1):
            for chat in range(_CHATS):
                reply = await fleet.chat(_messages(chat, turn), router=(chat + turn) % 2)
                served[chat] = reply.replica
        homes.update(served.values())
        await fleet.fresh_digests(0)
        leaving = homes.most_common(1)[0][0]
        replica = next(one for one in fleet.replicas if one.options.name == leaving)
        draining = asyncio.create_task(replica.drain())

        def noticed() -> bool:
            return all(
                member.health.standing is Standing.DRAINING
                for router in fleet.routers
                for member in router.fleet.replicas
                if member.name == leaving
            )

        await until(noticed)
        if prefill_tokens:
            orphans = homes[leaving]
            async with asyncio.timeout(10):
                while _handed_over(fleet, "warmed") < orphans:  # noqa: ASYNC110 - counted elsewhere
                    await asyncio.sleep(0.02)
        await draining
        prompts = hits = 0
        for chat, home in served.items():
            if home == leaving:
                reply = await fleet.chat(_messages(chat, _TURNS + 1), router=chat % 2)
                assert reply.status == 200
                assert reply.replica != leaving
                prompts, hits = prompts + reply.prompt_tokens, hits + reply.cached_tokens
        assert prompts
        if prefill_tokens:
            # All but the new turn, the last answer and the rest of a block.
            assert hits / prompts > 0.5
            # Each prefix went to one router: nothing was computed twice.
            assert _handed_over(fleet, "warmed") <= homes[leaving] + 2
            assert _handed_over(fleet, "refused") == 0
        else:
            assert hits / prompts < 0.4
            assert _handed_over(fleet, "warmed") == 0
