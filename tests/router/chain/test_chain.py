"""Chains: a prefix of tokens is a prefix of names and nothing else is, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.chain.algorithms import ALGORITHMS
from router.chain.chain import Chain, pack_tokens, unpack_tokens
from router.chain.keys import Keys
from router.chain.namer import ChainNamer

_PLAIN = Keys("m")
_tokens = st.lists(st.integers(0, 3), max_size=40)


def _chain(algorithm: str, tokens: list[int], keys: Keys = _PLAIN, seed: str = "s", block: int = 4) -> Chain:
    namer = ChainNamer(algorithm, seed, block, None)
    return namer.chain_of_tokens(tokens, keys)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=300, deadline=None)
@given(_tokens, _tokens)
def test_names_are_shared_just_as_far_as_whole_blocks_are(
    algorithm: str, one: list[int], other: list[int]
) -> None:
    first, second = _chain(algorithm, one), _chain(algorithm, other)
    shared_tokens = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
    shared_names = [a == b for a, b in zip(first.names, second.names, strict=False)]
    assert shared_names == [(index + 1) * 4 <= shared_tokens for index in range(len(shared_names))]
    assert len(first.names) == len(one) // 4
    assert unpack_tokens(first.remainder) == one[len(one) // 4 * 4 :]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_block_in_the_middle_matches_only_behind_the_same_text(algorithm: str) -> None:
    x, y = [1] * 8, [2] * 8
    assert not set(_chain(algorithm, x).names) & set(_chain(algorithm, y + x).names)
    assert not set(_chain(algorithm, [9, *x[1:]]).names) & set(_chain(algorithm, x).names)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_seed_keys_and_algorithm_make_other_names(algorithm: str) -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    base = _chain(algorithm, tokens)
    for other in (
        _chain(algorithm, tokens, seed="t"),
        _chain(algorithm, tokens, Keys("n")),
        _chain(algorithm, tokens, Keys("m", salt="a")),
        _chain(algorithm, tokens, Keys("m", adapter="a")),
        _chain("xxh3" if algorithm == "sha256" else "sha256", tokens),
    ):
        assert not set(base.names) & set(other.names)
    # The keys enter the first block only; names carry them to all others.
    assert (
        _chain(algorithm, tokens, Keys("m", salt="a")).names
        == _chain(algorithm, tokens, Keys("m", salt="a")).names
    )


def test_identities_differ_where_chains_do() -> None:
    identities = {
        ChainNamer(algorithm, seed, block, None).identity.fingerprint
        for algorithm in ALGORITHMS
        for seed in ("s", "t")
        for block in (4, 16)
    }
    assert len(identities) == 8


def test_a_fingerprint_does_not_give_the_root_away() -> None:
    namer = ChainNamer("sha256", "secret", 16, None)
    assert namer.identity.root_fingerprint not in namer.root.hex()


# Committed so that a change of the encoding is noticed: names outlive processes, machines and releases.
_VECTORS = {
    "sha256": "76638b24f49124abd52b3306a065ea1d90a4dcac237988f836090d60a0650be4",
    "xxh3": "88267c72d3e600f4",
}
_PROGRAM = """
from router.chain.keys import Keys
from router.chain.namer import ChainNamer
for algorithm in ("sha256", "xxh3"):
    chain = ChainNamer(algorithm, "kvring", 16, None).chain_of_tokens(
        range(40), Keys("model", adapter="a", adapter_revision="1", salt="tenant"))
    print(algorithm, chain.names[-1].hex())
"""


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_names_are_the_same_in_every_process(hash_seed: str) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert dict(line.split() for line in printed.splitlines()) == _VECTORS


def test_tokens_pack_and_unpack() -> None:
    assert pack_tokens([1, 2**32 - 1]) == b"\x01\x00\x00\x00\xff\xff\xff\xff"
    assert unpack_tokens(pack_tokens([7, 0, 49151])) == [7, 0, 49151]
    with pytest.raises(OverflowError):
        pack_tokens([2**32])
