"""Digests: what is held is found, little else is, and the deepest boundary is found by halves."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.chain.chain import Chain
from router.chain.digest import DENSE_TOKENS, STRIDE_TOKENS, Digest, boundaries, is_boundary
from router.placement.digests import DigestTable
from router.placement.marks import Marks


def _deepest(digest: Digest, names: list[bytes]) -> int:
    """The depth that a table finds for the one replica whose digest it holds."""
    table = DigestTable()
    table.put(3, digest, 1.0)
    chain = Chain("chain", names, b"", 64, 16, 16 * len(names))
    told = table.held_blocks(chain, Marks(chain), [3])
    assert told is not None
    return told[0]


def _names(count: int, width: int = 32, salt: str = "") -> list[bytes]:
    return [sha256(f"{salt}{index}".encode()).digest()[:width] for index in range(count)]


@pytest.mark.parametrize("width", [32, 16, 8])
def test_all_that_is_held_is_found_and_little_else(width: int) -> None:
    held = _names(5000, width)
    digest = Digest.of(held, "chain", "epoch")
    assert all(name in digest for name in held)
    others = _names(5000, width, salt="other")
    assert sum(name in digest for name in others) / len(others) < 0.02
    assert 10 <= len(digest.bits) * 8 / len(held) < 20
    assert len(digest.bits) & (len(digest.bits) - 1) == 0


def test_an_empty_digest_holds_nothing() -> None:
    digest = Digest.of([], "chain", "epoch")
    assert not any(name in digest for name in _names(1000))
    assert _deepest(digest, _names(100)) == 0


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 600), st.integers(0, 600))
def test_the_deepest_boundary_is_found(length: int, resident: int) -> None:
    chain = _names(length)
    held = [name for depth, name in enumerate(chain[:resident], 1) if is_boundary(depth, 16)]
    depths = boundaries(length, 16)
    expected = max((depth for depth in depths if depth <= resident), default=0)
    found = _deepest(Digest.of(held, "chain", "epoch"), chain)
    # A false positive can only deepen it; how seldom, the next test tells.
    assert found >= expected
    assert found in (0, *depths)


def test_the_depth_is_seldom_wrong() -> None:
    depths = boundaries(300, 16)
    wrong = 0
    for resident in range(300):
        chain = _names(300, salt=f"{resident}:")
        held = [name for depth, name in enumerate(chain[:resident], 1) if is_boundary(depth, 16)]
        expected = max((depth for depth in depths if depth <= resident), default=0)
        wrong += _deepest(Digest.of(held, "chain", "epoch"), chain) != expected
    assert wrong <= 20


def test_boundaries_and_the_rule_agree() -> None:
    for length in (
        0,
        1,
        DENSE_TOKENS // 16,
        (DENSE_TOKENS + STRIDE_TOKENS) // 16 - 1,
        (DENSE_TOKENS + STRIDE_TOKENS) // 16,
        500,
        40_000,
    ):
        for block_tokens in (1, 16, 48, 128, 512, 2048):
            by_rule = [depth for depth in range(1, length + 1) if is_boundary(depth, block_tokens)]
            assert list(boundaries(length, block_tokens)) == by_rule


def test_the_longest_prompt_has_few_boundaries() -> None:
    assert len(boundaries(2_000_000, 16)) < 1_500


def test_the_wire_form_reads_back() -> None:
    digest = Digest.of(_names(100), "chain", "epoch")
    assert Digest.from_json(digest.to_json()) == digest


@pytest.mark.parametrize(
    "change",
    [
        {"probes": 3},
        {"bits": "???"},
        {"bits": "AAAA"},
        {"bits": 3},
        {"identity": None},
        {"names": "many"},
    ],
)
def test_another_form_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Digest.from_json({**Digest.of(_names(3), "chain", "epoch").to_json(), **change})
    with pytest.raises(ValueError):
        Digest.from_json([])
