"""Why it missed, in a live fleet: every uncached token counted once, hardly any of them unexplained."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.fleets import LiveFleet, live_fleet
from tests.router.scripted import until

SYSTEM = "You are careful and brief, and you answer in plain words. " * 6


async def counters(fleet: LiveFleet) -> dict[str, dict[str, Counter[str]]]:
    """The token counters of the first router: by metric, replica and cause."""
    async with fleet.session.get(f"{fleet.routers[0].address}/metrics") as response:
        text = await response.text()
    told: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "replica" in sample.labels and sample.name.endswith("tokens_total"):
                cause = sample.labels.get("cause", "")
                told[sample.name][sample.labels["replica"]][cause] += int(sample.value)
    return told


async def misses(fleet: LiveFleet) -> Counter[str]:
    """Uncached tokens by cause, once it is checked that they add up, replica by replica."""
    told = await counters(fleet)
    causes: Counter[str] = Counter()
    for replica, prompt in told["kvring_prompt_tokens_total"].items():
        hit = told["kvring_hit_tokens_total"][replica][""]
        uncached = told["kvring_uncached_tokens_total"][replica]
        assert uncached.total() == prompt[""] - hit, replica
        causes += uncached
    return causes


class Chats:
    """Conversations that grow turn by turn, half of them under another salt."""

    def __init__(self, fleet: LiveFleet, count: int, seed: int) -> None:
        self._fleet = fleet
        self._draw = random.Random(seed)
        self._chats: list[list[dict[str, Any]]] = [
            [{"role": "system", "content": SYSTEM}] for _ in range(count)
        ]
        self._lengths = [0] * count
        # Tokens that no prompt of the same chat had before, the instructions of its first turn apart.
        self.new_tokens = 0

    async def turn(self, which: int) -> None:
        chat = self._chats[which]
        words = " ".join(str(self._draw.randrange(10**6)) for _ in range(40))
        chat.append({"role": "user", "content": words})
        reply = await self._fleet.chat(chat, cache_salt=f"tenant-{which % 2}")
        assert reply.status == 200
        if self._lengths[which]:
            self.new_tokens += reply.prompt_tokens - self._lengths[which]
        self._lengths[which] = reply.prompt_tokens
        chat.append({"role": "assistant", "content": reply.text})

    async def turns(self, count: int) -> None:
        """That many turns of conversations drawn at random, four at a time."""
        for _ in range(count // 4):
            drawn = self._draw.sample(range(len(self._chats)), 4)
            await asyncio.gather(*(self.turn(which) for which in drawn))


async def test_a_mix_of_everything_is_explained() -> None:
    # Caches too small for all chats; one replica of four leaves.
    async with live_fleet(4, replica={"echo": {"block_count": 250}}) as fleet:
        chats = Chats(fleet, 24, seed=1)
        # First turns together have no past: instructions are new once for each salt, then held somewhere.
        await chats.turns(24)
        before = await misses(fleet)
        chats.new_tokens = 0
        await chats.turns(76)
        await fleet.replicas.pop().stop()
        await chats.turns(60)
        causes = await misses(fleet)
    assert causes["unknown"] <= 0.05 * causes.total(), causes
    for cause in ("partial_block", "evicted", "routed_by_membership", "key_mismatch", "cold"):
        assert causes[cause] > 0, causes
    # A new turn is cold but for the part of a block at its end, where it shares one with the next.
    cold = causes["cold"] - before["cold"]
    assert 0.75 * chats.new_tokens < cold <= 1.15 * chats.new_tokens


async def test_what_others_hold_is_told_from_what_left_with_a_replica() -> None:
    chat = [{"role": "user", "content": "Tell me of the sea, and of ships, and of the wind. " * 20}]
    async with live_fleet(2, policy={"name": "round_robin"}) as fleet:
        first, second = await fleet.chat(chat), await fleet.chat(chat)
        assert first.replica != second.replica
        causes = await misses(fleet)
        whole = (first.prompt_tokens - 1) // 16 * 16
        assert causes == {
            "cold": whole,
            "routed_by_load": whole,
            "partial_block": 2 * (first.prompt_tokens - whole),
        }


async def test_a_cleared_cache_is_no_eviction() -> None:
    chat = [{"role": "user", "content": "Tell me of the sea, and of ships, and of the wind. " * 20}]
    async with live_fleet(1) as fleet:
        first = await fleet.chat(chat)
        (known,) = fleet.routers[0].fleet.replicas
        before = known.epoch
        async with fleet.session.post(f"{fleet.replicas[0].url}/reset_prefix_cache") as response:
            assert response.status == 200
        await until(lambda: known.epoch != before)
        assert (await fleet.chat(chat)).cached_tokens == 0
        whole = (first.prompt_tokens - 1) // 16 * 16
        causes = await misses(fleet)
        assert (causes["routed_by_membership"], causes["cold"]) == (whole, whole)


async def test_another_salt_is_told_from_new_text() -> None:
    chat = [{"role": "user", "content": "Tell me of the sea, and of ships, and of the wind. " * 20}]
    async with live_fleet(2) as fleet:
        for salt in ("one", "two"):
            reply = await fleet.chat(chat, cache_salt=salt)
        causes = await misses(fleet)
        whole = (reply.prompt_tokens - 1) // 16 * 16
        assert (causes["cold"], causes["key_mismatch"]) == (whole, whole)
