"""The index holds what an engine holds, under the names that requests are given."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.chain.digest import Digest, is_boundary
from router.chain.keys import Keys
from router.chain.namer import ChainNamer
from router.events.decode import decode_batch
from router.events.index import ResidentIndex
from tests.router.events.publisher import CLEARED, prompt, removed, stored
from tests.tiny_tokenizer import tiny_tokenizer

_NAMER = ChainNamer("sha256", "seed", 16, tiny_tokenizer())
_BY_BYTES = ChainNamer("sha256", "seed", 16, None)


def _index(limit: int = 100_000) -> ResidentIndex:
    return ResidentIndex(_NAMER, "m", {"m": _NAMER, "adapter": _NAMER, "bytes": _BY_BYTES}.get, limit)


def _take(index: ResidentIndex, *events: Any) -> None:
    for event in decode_batch(msgspec.msgpack.encode([1.0, list(events), 0])).events:
        for _ in index.take(event):
            pass


def _names(tokens: list[int], model: str = "m", salt: str | None = None) -> list[bytes]:
    chain = _NAMER.chain_of_tokens(tokens, Keys(model=model, salt=salt))
    return [name for depth, name in enumerate(chain.names, 1) if is_boundary(depth, 16)]


@pytest.mark.parametrize("block_tokens", [1, 7, 16, 20, 32, 48, 64, 256])
@pytest.mark.parametrize("events", ["one", "one a block"])
def test_names_are_those_of_requests_whatever_the_engines_block(block_tokens: int, events: str) -> None:
    index = _index()
    blocks = 2600 // block_tokens
    tokens, hashes = prompt(1, blocks, block_tokens)
    if events == "one":
        _take(index, stored(tokens, hashes))
    else:
        for at in range(blocks):
            part = tokens[at * block_tokens : (at + 1) * block_tokens]
            _take(index, stored(part, [hashes[at]], hashes[at - 1] if at else None))
    assert sorted(index.names()) == sorted(_names(tokens))
    assert index.block_count == blocks
    # A tail that leaves takes the names with it whose last token it held.
    gone = blocks // 3
    _take(index, removed(hashes[-gone:]))
    assert sorted(index.names()) == sorted(_names(tokens[: (blocks - gone) * block_tokens]))
    _take(index, removed(hashes))
    assert index.names() == []
    assert index.block_count == 0


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_parity_with_the_namer_over_random_cuts(data: st.DataObject) -> None:
    block_tokens = data.draw(st.sampled_from([1, 3, 16, 24, 64]))
    blocks = data.draw(st.integers(1, 4000 // block_tokens if block_tokens > 3 else 300))
    tokens, hashes = prompt(data.draw(st.integers(0, 1000)), blocks, block_tokens)
    salt = data.draw(st.sampled_from([None, "tenant"]))
    keys = [[salt] if salt else None] + [None] * (blocks - 1)
    index = _index()
    at = 0
    while at < blocks:
        count = data.draw(st.integers(1, blocks - at))
        part = tokens[at * block_tokens : (at + count) * block_tokens]
        event = stored(part, hashes[at : at + count], hashes[at - 1] if at else None)
        _take(index, {**event, "extra_keys": keys[at : at + count]})
        at += count
    assert sorted(index.names()) == sorted(_names(tokens, salt=salt))
    digest = Digest.of(index.names(), index.identity, "e")
    assert all(name in digest for name in _names(tokens, salt=salt))


def test_salts_and_adapters_are_named_apart() -> None:
    index = _index()
    tokens, hashes = prompt(1, 4)
    _take(
        index,
        stored(tokens, hashes, extra_keys=[["tenant"], None, None, None]),
        stored(tokens, [h + 1 for h in hashes], lora_name="adapter", lora_id=1),
        stored(tokens, [h + 2 for h in hashes], cache_salt="another"),
    )
    expected = _names(tokens, "m", "tenant") + _names(tokens, "adapter") + _names(tokens, "m", "another")
    assert sorted(index.names()) == sorted(expected)
    assert not set(index.names()) & set(_names(tokens))


def test_an_adapter_loaded_anew_loses_what_the_old_one_computed() -> None:
    index = _index()
    base, base_hashes = prompt(1, 4)
    tokens, hashes = prompt(2, 4)
    _take(index, stored(base, base_hashes), stored(tokens, hashes, lora_name="adapter", lora_id=1))
    version = index.names_version
    other, other_hashes = prompt(3, 2)
    _take(index, stored(other, other_hashes, lora_name="adapter", lora_id=2))
    assert sorted(index.names()) == sorted(_names(base) + _names(other, "adapter"))
    assert index.names_version > version
    # What was held for the old weights leaves without a trace.
    _take(index, removed(hashes))
    assert sorted(index.names()) == sorted(_names(base) + _names(other, "adapter"))
    # An engine that tells the same hash for both: it counts for the new one.
    _take(index, stored(tokens, hashes, lora_name="adapter", lora_id=2))
    assert set(_names(tokens, "adapter")) < set(index.names())


@pytest.mark.parametrize("adapter", ["bytes", "unheard of"])
def test_an_adapter_whose_prompts_are_named_otherwise_is_left_out(adapter: str) -> None:
    index = _index()
    tokens, hashes = prompt(1, 4)
    _take(
        index,
        stored(tokens, hashes, lora_name=adapter),
        stored(tokens, [5, 6, 7, 8], hashes[-1], lora_name=adapter),
    )
    assert (index.names(), index.block_count, index.orphan_count) == ([], 0, 0)
    assert index.skipped_blocks == {"an adapter named otherwise": 8}
    assert not index.usable


def test_a_chain_ends_at_a_picture() -> None:
    index = _index()
    tokens, hashes = prompt(1, 6)
    keys = [None, None, [["picture", 3]], [["picture", -13]], None, None]
    _take(index, stored(tokens, hashes, extra_keys=keys))
    more, more_hashes = prompt(2, 2)
    _take(index, stored(more, more_hashes, hashes[-1]))
    assert sorted(index.names()) == sorted(_names(tokens[:32]))
    assert index.orphan_count == 0
    assert index.skipped_blocks == {"more than tokens in their keys": 6}
    _take(index, removed([*hashes, *more_hashes]))
    assert index.block_count == 0


def test_a_block_is_held_as_long_as_any_place_holds_it() -> None:
    index = _index()
    tokens, hashes = prompt(1, 4)
    _take(index, stored(tokens, hashes), stored(tokens, hashes, medium="CPU_PINNED"))
    _take(index, removed(hashes, "GPU"))
    assert sorted(index.names()) == sorted(_names(tokens))
    _take(index, stored(tokens, hashes), removed(hashes, "CPU_PINNED"), removed(hashes, "DISK"))
    assert sorted(index.names()) == sorted(_names(tokens))
    _take(index, stored([], hashes[:2], medium="CPU"), removed(hashes, "GPU"))
    # Offloading tiers tell no tokens: known blocks are found by their hash.
    assert sorted(index.names()) == sorted(_names(tokens[:32]))
    _take(index, removed(hashes, None))
    assert index.names() == []


def test_many_places_share_what_there_is() -> None:
    index = _index()
    tokens, hashes = prompt(1, 1)
    for place in range(100):
        _take(index, stored(tokens, hashes, medium=f"place {place}"))
    for place in range(100):
        _take(index, removed(hashes, f"place {place}"))
    assert index.names() == []


def test_a_block_told_of_twice_is_held_once() -> None:
    index = _index()
    tokens, hashes = prompt(1, 4)
    for _ in range(3):
        _take(index, stored(tokens, hashes))
    _take(index, removed(hashes))
    assert index.names() == []


def test_one_name_stays_while_another_block_has_it() -> None:
    index = _index()
    tokens, hashes = prompt(1, 4)
    _take(index, stored(tokens, hashes), stored(tokens, [1, 2, 3, 4]), removed(hashes))
    assert sorted(index.names()) == sorted(_names(tokens))
    _take(index, removed([1, 2, 3, 4]))
    assert index.names() == []


def test_orphans_wait_for_their_parent_and_are_never_credited_before() -> None:
    index = _index()
    tokens, hashes = prompt(1, 300)
    for at in reversed(range(1, 300)):
        _take(index, stored(tokens[at * 16 : (at + 1) * 16], [hashes[at]], hashes[at - 1]))
    assert (index.names(), index.block_count, index.orphan_count) == ([], 0, 299)
    _take(index, removed([hashes[200]]))
    _take(index, stored(tokens[:16], hashes[:1]))
    assert sorted(index.names()) == sorted(_names(tokens[: 200 * 16]))
    assert index.orphan_count == 99
    _take(index, stored(tokens[200 * 16 : 201 * 16], [hashes[200]], hashes[199]))
    assert sorted(index.names()) == sorted(_names(tokens))
    assert index.orphan_count == 0


def test_blocks_told_of_again_are_known_without_their_parent() -> None:
    index = _index()
    tokens, hashes = prompt(1, 6)
    _take(index, stored(tokens[:64], hashes[:4]), removed(hashes[:2]))
    _take(index, stored(tokens[16:], hashes[1:], hashes[0], medium="CPU"), removed(hashes[2:], "GPU"))
    assert sorted(index.names()) == sorted(_names(tokens)[2:])
    assert index.orphan_count == 1
    _take(index, stored(tokens[:16], hashes[:1]))
    assert sorted(index.names()) == sorted(_names(tokens))
    assert index.orphan_count == 0


def test_orphans_are_bounded() -> None:
    index = _index(limit=1024)
    for seed in range(100):
        tokens, hashes = prompt(seed, 100)
        _take(index, stored(tokens, hashes, parent=seed))
    assert 900 < index.orphan_count <= 1024
    assert index.block_count == 0
    # The last ones are those that stayed.
    root = prompt(1000, 1)[0]
    _take(index, stored(root, [99]))
    assert index.block_count == 101


def test_the_index_is_bounded_and_the_oldest_leave() -> None:
    index = _index(limit=2048)
    prompts = [prompt(seed, 100) for seed in range(100)]
    for tokens, hashes in prompts:
        _take(index, stored(tokens, hashes))
        assert index.block_count <= 2048
    assert index.evicted_blocks == 100 * 100 - index.block_count
    assert index.block_count > 1900
    held = set(index.names())
    assert set(_names(prompts[-1][0])) <= held
    assert not set(_names(prompts[0][0])) & held
    # Those that leave the engine later are no surprise.
    _take(index, *(removed(hashes) for _, hashes in prompts))
    assert index.names() == []


def test_pairs_of_tokens_are_counted_and_nothing_is_known_then() -> None:
    index = _index()
    pairs = {**stored([], [5]), "token_ids": [[1, 2]] * 16}
    _take(index, pairs)
    assert index.skipped_blocks == {"pairs of tokens": 1}
    assert not index.usable
    tokens, hashes = prompt(1, 1)
    _take(index, stored(tokens, hashes))
    assert index.usable


def test_clearing_forgets_all_and_begins_another_life() -> None:
    index = _index()
    tokens, hashes = prompt(1, 4)
    _take(index, stored(tokens, hashes), stored(tokens, [1, 2, 3, 4], parent=9))
    life, version = index.life, index.names_version
    _take(index, CLEARED)
    assert (index.names(), index.block_count, index.orphan_count) == ([], 0, 0)
    assert index.life > life
    assert index.names_version > version


def test_names_change_their_version_only_when_they_change() -> None:
    index = _index()
    tokens, hashes = prompt(1, 4)
    _take(index, stored(tokens, hashes))
    version = index.names_version
    _take(
        index,
        stored(tokens, hashes),
        stored(tokens, hashes, medium="CPU"),
        removed(hashes, "CPU"),
        removed([1]),
    )
    assert index.names_version == version
    _take(index, removed(hashes[3:]))
    assert index.names_version > version


class _Naive(RuleBasedStateMachine):
    """Against a model that keeps the whole prefix of every block, and names it anew at each look."""

    def __init__(self) -> None:
        super().__init__()
        self.index = _index()
        # Hash: the tokens up to its end, the places that hold it.
        self.held: dict[int, tuple[list[int], set[str]]] = {}
        # What the engine knows of blocks that it dropped, so that they can come back as the same.
        self.content: dict[int, tuple[int | None, list[int]]] = {}
        self.next = 1

    @rule(data=st.data(), count=st.integers(1, 4), size=st.sampled_from([5, 16, 32]))
    def store_new(self, data: st.DataObject, count: int, size: int) -> None:
        parent = data.draw(st.sampled_from([None, *sorted(self.held)]))
        tokens = [data.draw(st.integers(0, 2)) for _ in range(count)]
        hashes = list(range(self.next, self.next + count))
        self.next += count
        flat = [token for token in tokens for _ in range(size)]
        _take(self.index, stored(flat, hashes, parent))
        before = list(self.held[parent][0]) if parent is not None else []
        for hash_, token in zip(hashes, tokens, strict=True):
            self.content[hash_] = (parent, [token] * size)
            before = before + [token] * size
            self.held[hash_] = (before, {"GPU"})
            parent = hash_

    @rule(data=st.data(), place=st.sampled_from(["GPU", "CPU"]))
    def store_again(self, data: st.DataObject, place: str) -> None:
        # An engine tells again of blocks that it holds, and stores none without what is before it.
        known = [
            hash_
            for hash_, (parent, _) in self.content.items()
            if parent is None or parent in self.held or hash_ in self.held
        ]
        if not known:
            return
        hash_ = data.draw(st.sampled_from(sorted(known)))
        parent, tokens = self.content[hash_]
        _take(self.index, stored(tokens, [hash_], parent, medium=place))
        if hash_ in self.held:
            self.held[hash_][1].add(place)
        else:
            before = self.held[parent][0] if parent is not None else []
            self.held[hash_] = (before + tokens, {place})

    @rule(data=st.data(), place=st.sampled_from(["GPU", "CPU", None]))
    def remove(self, data: st.DataObject, place: str | None) -> None:
        if not self.held:
            return
        hashes = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, max_size=3, unique=True))
        _take(self.index, removed(hashes, place))
        for hash_ in hashes:
            places = self.held[hash_][1]
            places.difference_update({place} if place else set(places))
            if not places:
                del self.held[hash_]

    @rule()
    def clear(self) -> None:
        _take(self.index, CLEARED)
        self.held.clear()

    @invariant()
    def same_names(self) -> None:
        expected = set()
        for hash_, (tokens, _) in self.held.items():
            names = _names(tokens)
            ends_before = (len(tokens) - len(self.content[hash_][1])) // 16
            expected |= set(names[ends_before:])
        assert set(self.index.names()) == expected
        assert len(self.index.names()) == len(expected)
        assert self.index.block_count == len(self.held)


TestNaive = _Naive.TestCase
TestNaive.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
