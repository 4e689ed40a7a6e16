"""The pool: found by name, evicted in order, never leaking, against a model of it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from replica.block_pool import Block, BlockPool, PoolError


def chain_of(*steps: int) -> list[bytes]:
    """Names such that a name stands for its whole prefix."""
    return [bytes(steps[: depth + 1]) for depth in range(len(steps))]


def fill(pool: BlockPool, names: list[bytes]) -> list[Block]:
    """Hold a chain as a sequence would: matched blocks first, then new ones, named as they fill."""
    held = pool.match(names)
    pool.touch(held)
    taken = pool.take(len(names) - len(held))
    assert taken is not None
    for index, block in enumerate(taken, len(held)):
        pool.give_name(block, names[index], index + 1)
    return held + taken


def test_a_chain_is_evicted_from_its_tail() -> None:
    pool = BlockPool(3)
    names = chain_of(1, 2, 3)
    pool.release(fill(pool, names))
    assert pool.take(1) is not None
    assert len(pool.match(names)) == 2


def test_blocks_without_a_name_are_used_first() -> None:
    pool = BlockPool(8)
    names = chain_of(1, 2, 3, 4, 5)
    pool.release(fill(pool, names))
    for _ in range(20):
        partial = pool.take(2)
        assert partial is not None
        pool.release(partial)
    assert len(pool.match(names)) == 5


def test_the_least_recently_used_chain_goes_first() -> None:
    pool = BlockPool(4)
    old, new = chain_of(1, 2), chain_of(3, 4)
    pool.release(fill(pool, old))
    pool.release(fill(pool, new))
    pool.release(fill(pool, old))
    assert pool.take(2) is not None
    assert len(pool.match(old)) == 2
    assert pool.match(new) == []


def test_take_is_all_or_nothing() -> None:
    pool = BlockPool(3)
    names = chain_of(1, 2)
    pool.release(fill(pool, names))
    assert pool.take(4) is None
    assert pool.free_count == 3
    assert len(pool.match(names)) == 2


def test_a_name_stays_findable_while_a_twin_holds_it() -> None:
    pool = BlockPool(2)
    first, second = pool.take(1), pool.take(1)
    assert first
    assert second
    pool.give_name(first[0], b"a", 1)
    pool.give_name(second[0], b"a", 1)
    pool.release(first)
    taken = pool.take(1)
    assert taken == first
    assert pool.match([b"a"]) == second
    pool.release(second)
    assert pool.take(1) == second
    assert pool.match([b"a"]) == []


def test_match_changes_nothing_and_obeys_its_limit() -> None:
    pool = BlockPool(3)
    names = chain_of(1, 2, 3)
    pool.release(fill(pool, names))
    assert len(pool.match(names, 2)) == 2
    assert pool.free_count == 3
    taken = pool.take(1)
    assert taken
    assert len(pool.match(names)) == 2


def test_reset_is_refused_while_blocks_are_held() -> None:
    pool = BlockPool(3)
    names = chain_of(1, 2)
    held = fill(pool, names)
    assert not pool.reset()
    assert len(pool.match(names)) == 2
    pool.release(held)
    version = pool.version
    assert pool.reset()
    assert pool.match(names) == []
    assert pool.boundary_names() == ()
    assert pool.version > version
    assert pool.free_count == 3


def test_only_boundary_names_are_published() -> None:
    pool = BlockPool(100)
    names = chain_of(*range(97))
    pool.release(fill(pool, names))
    published = pool.boundary_names()
    assert set(published) == {*names[:64], names[95]}


def test_misuse_is_refused() -> None:
    pool = BlockPool(2)
    taken = pool.take(1)
    assert taken
    pool.give_name(taken[0], b"a", 1)
    with pytest.raises(PoolError):
        pool.give_name(taken[0], b"b", 1)
    pool.release(taken)
    with pytest.raises(PoolError):
        pool.release(taken)
    with pytest.raises(PoolError):
        pool.give_name(taken[0], b"b", 1)


class PoolMachine(RuleBasedStateMachine):
    """Sequences come, fill blocks, share prefixes and go, in any order; the pool agrees with the books."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(7)
        self.live: list[tuple[list[Block], list[bytes]]] = []

    @rule(target=sequences, steps=st.lists(st.integers(0, 1), min_size=1, max_size=5), partial=st.booleans())
    def start(self, steps: list[int], partial: bool) -> object:
        names = chain_of(*steps)
        hits = self.pool.match(names)
        self.pool.touch(hits)
        taken = self.pool.take(len(names) - len(hits) + partial)
        if taken is None:
            self.pool.release(hits)
            return multiple()
        assert not set(map(id, hits)) & set(map(id, taken))
        sequence = (hits + taken, names)
        self.live.append(sequence)
        return sequence

    @rule(sequence=sequences)
    def compute(self, sequence: tuple[list[Block], list[bytes]]) -> None:
        blocks, names = sequence
        for depth, (block, name) in enumerate(zip(blocks, names, strict=False), 1):
            if block.name is None:
                self.pool.give_name(block, name, depth)
                break

    @rule(sequence=consumes(sequences))
    def finish(self, sequence: tuple[list[Block], list[bytes]]) -> None:
        self.pool.release(sequence[0])
        self.live = [one for one in self.live if one is not sequence]

    @rule()
    def reset(self) -> None:
        assert self.pool.reset() == (not self.live)

    @invariant()
    def references_are_those_of_the_sequences(self) -> None:
        wanted = dict.fromkeys(range(self.pool.block_count), 0)
        for blocks, _ in self.live:
            for block in blocks:
                wanted[block.id] += 1
        assert {block.id: block.references for block in self.pool._blocks} == wanted

    @invariant()
    def the_free_list_holds_just_the_free_blocks(self) -> None:
        forward: list[int] = []
        backward: list[int] = []
        block = self.pool._list.after
        while block is not self.pool._list and len(forward) <= self.pool.block_count:
            forward.append(block.id)
            block = block.after
        block = self.pool._list.before
        while block is not self.pool._list and len(backward) <= self.pool.block_count:
            backward.append(block.id)
            block = block.before
        free = [block.id for block in self.pool._blocks if block.references == 0]
        assert sorted(forward) == free
        assert forward == backward[::-1]
        assert self.pool.free_count == len(free)

    @invariant()
    def names_find_blocks_that_carry_them(self) -> None:
        carried = {block.name for block in self.pool._blocks if block.name is not None}
        assert carried == set(self.pool._named)
        assert set(self.pool.boundary_names()) == carried
        assert self.pool.name_count == len(carried)
        for name, block in self.pool._named.items():
            assert block.name == name
            assert block.depth == len(name)

    @invariant()
    def the_parent_of_a_named_block_is_named(self) -> None:
        for name in self.pool._named:
            assert len(name) == 1 or name[:-1] in self.pool._named

    @invariant()
    def held_names_stay_findable(self) -> None:
        for blocks, names in self.live:
            for block, name in zip(blocks, names, strict=False):
                if block.name is not None:
                    assert block.name == name
                    assert self.pool.match([name])


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
