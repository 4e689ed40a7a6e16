"""Stack distances: the very hits of the replica's own block pool, at every size, in one pass."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.ceiling.bound import BoundMeter
from loadgen.ceiling.stack import BlockStack
from replica.block_pool import BlockPool

# A prompt is a path in a small tree: its blocks are the starts of the path, so that ids are chained.
PATHS = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=40)


def ids_of(path: str) -> list[int]:
    return [int.from_bytes(path[: depth + 1].encode(), "little") for depth in range(len(path))]


def pool_hits(prompts: list[str], blocks: int) -> list[int]:
    """Run prompts through the real pool, one after the other; return the blocks found of each."""
    pool = BlockPool(blocks)
    hits = []
    for prompt in prompts:
        names = [id.to_bytes(8, "little") for id in ids_of(prompt)]
        found = pool.match(names)
        pool.touch(found)
        taken = pool.take(len(names) - len(found))
        assert taken is not None
        for depth, (block, name) in enumerate(zip(taken, names[len(found) :], strict=True), len(found) + 1):
            pool.give_name(block, name, depth)
        pool.release([*found, *taken])
        hits.append(len(found))
    return hits


@given(PATHS, st.integers(6, 30))
@settings(max_examples=150, deadline=None)
def test_hits_are_those_of_the_real_pool(prompts: list[str], blocks: int) -> None:
    stack = BlockStack(max_blocks=1 << 20)
    hits = []
    for prompt in prompts:
        reuses = stack.use(ids_of(prompt))
        hits.append(sum(min(max(blocks - reuse.distance, 0), reuse.blocks) for reuse in reuses))
    assert hits == pool_hits(prompts, blocks)


def test_many_uses_of_a_few_places() -> None:
    """Places are numbered anew when they run out: distances stay as they are."""
    stack = BlockStack(max_blocks=1 << 20)
    prompts = [format(number % 37, "06b").translate({48: "a", 49: "b"}) for number in range(4000)]
    hits = []
    for prompt in prompts:
        reuses = stack.use(ids_of(prompt))
        hits.append(sum(min(max(20 - reuse.distance, 0), reuse.blocks) for reuse in reuses))
    assert hits == pool_hits(prompts, 20)
    assert stack.blocks == stack.distinct == len({id for prompt in prompts for id in ids_of(prompt)})


@given(PATHS)
@settings(max_examples=50, deadline=None)
def test_memory_is_bounded_by_forgetting_what_was_used_longest_ago(prompts: list[str]) -> None:
    """Of runs the last goes whole, so that no more is found than in a cache of that size, never less than
    in one without a run."""
    stack = BlockStack(max_blocks=12)
    unbounded = BlockStack(max_blocks=1 << 20)
    for prompt in prompts:
        found = sum(reuse.blocks for reuse in stack.use(ids_of(prompt)))
        assert stack.blocks <= 12
        held = sum(min(max(12 - reuse.distance, 0), reuse.blocks) for reuse in unbounded.use(ids_of(prompt)))
        assert max(0, held - 6) <= found <= held


def test_a_random_replica_is_the_mean_over_all_placements() -> None:
    prompts = ["aab", "aaba", "ab", "aabab"]
    replicas = 3
    hits = 0
    for placement in product(range(replicas), repeat=len(prompts)):
        seen: list[set[int]] = [set() for _ in range(replicas)]
        for prompt, replica in zip(prompts, placement, strict=True):
            ids = ids_of(prompt)
            hits += sum(id in seen[replica] for id in ids)
            seen[replica].update(ids)
    meter = BoundMeter(block_tokens=10, replicas=(1, replicas))
    for prompt in prompts:
        # Longer than the blocks: the token that is always computed is not one of theirs.
        meter.add(ids_of(prompt), len(prompt) * 10 + 5)
    by_replicas = dict(meter.bound().by_replicas)
    assert by_replicas[replicas] == pytest.approx(hits * 10 / replicas ** len(prompts))
    assert by_replicas[1] == meter.bound().hit_tokens
