"""The ghost tells evicted from never seen: in bounded memory, by a replica's usage."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from openai.types import CompletionUsage

from replica.block_pool import BlockPool
from replica.ghost import Ghost
from tests.replica.conftest import Launch


def chain_of(seed: int, blocks: int) -> list[bytes]:
    return [sha256(f"{seed}/{depth}".encode()).digest() for depth in range(blocks)]


def hold_and_release(pool: BlockPool, names: list[bytes]) -> None:
    blocks = pool.take(len(names))
    assert blocks is not None
    for depth, (block, name) in enumerate(zip(blocks, names, strict=True), 1):
        pool.give_name(block, name, depth)
    pool.release(blocks)


def test_what_was_evicted_is_told_from_what_was_never_there() -> None:
    pool = BlockPool(8)
    old, new = chain_of(1, 6), chain_of(2, 6)
    hold_and_release(pool, old)
    assert pool.ghost.depth(old, 0, 6) == 0
    hold_and_release(pool, new)
    # Two blocks were free; the other four came from the old chain's tail.
    found = len(pool.match(old))
    assert (found, pool.ghost.depth(old, found, 6)) == (2, 6)
    assert pool.ghost.depth(old, found, 5) == 5
    assert pool.ghost.depth(chain_of(3, 6), 0, 6) == 0


def test_a_block_with_a_living_twin_is_not_evicted() -> None:
    pool = BlockPool(2)
    name = chain_of(1, 1)
    for _ in range(2):
        hold_and_release(pool, name)
    assert pool.take(1) is not None
    assert (len(pool.match(name)), pool.ghost.depth(name, 0, 1)) == (1, 0)


def test_a_reset_is_no_eviction() -> None:
    pool = BlockPool(4)
    hold_and_release(pool, chain_of(1, 4))
    hold_and_release(pool, chain_of(2, 4))
    assert pool.reset()
    assert pool.ghost.depth(chain_of(1, 4), 0, 4) == 0
    assert pool.ghost.depth(chain_of(2, 4), 0, 4) == 0


def test_the_newest_names_are_remembered_and_memory_is_not() -> None:
    ghost = Ghost(256)
    for seed in range(5000):
        for name in chain_of(seed, 4):
            ghost.note(name)
    remembered = [ghost.depth(chain_of(seed, 4), 0, 4) > 0 for seed in range(5000)]
    assert all(remembered[-5:])
    assert sum(remembered) <= 1024


async def test_usage_tells_what_was_cached_here_once(launch: Launch) -> None:
    client = await launch(echo={"block_count": 16})

    async def usage(prompt: list[int]) -> dict[str, Any]:
        told: dict[str, Any] = (await client.complete(prompt, max_tokens=1)).json()["usage"]
        return told

    first, second = list(range(1000, 1200)), list(range(2000, 2200))
    assert (await usage(first))["prompt_tokens_details"] == {"cached_tokens": 0, "evicted_tokens": 0}
    await usage(second)
    told = await usage(first)
    details = told["prompt_tokens_details"]
    # Twelve blocks could have hit.
    assert details["evicted_tokens"] > 0
    assert details["cached_tokens"] + details["evicted_tokens"] == 192
    assert CompletionUsage.model_validate(told).prompt_tokens_details is not None


async def test_without_a_cache_nothing_is_told_of_evictions(launch: Launch) -> None:
    client = await launch(enable_prefix_caching=False)
    answer = (await client.complete(list(range(64)))).json()
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
