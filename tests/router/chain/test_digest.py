"""Digests: what is held is found, little else is, and the deepest boundary is found by halves."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.chain.digest import DENSE_BLOCKS, STRIDE_BLOCKS, Digest, boundaries, is_boundary


def _names(count: int, width: int = 32, salt: str = "") -> list[bytes]:
    return [sha256(f"{salt}{index}".encode()).digest()[:width] for index in range(count)]


@pytest.mark.parametrize("width", [32, 16, 8])
def test_all_that_is_held_is_found_and_little_else(width: int) -> None:
    held = _names(5000, width)
    digest = Digest.of(held, "chain", "epoch")
    assert all(name in digest for name in held)
    others = _names(5000, width, salt="other")
    assert sum(name in digest for name in others) / len(others) < 0.02
    assert len(digest.bits) * 8 / len(held) == pytest.approx(10, abs=0.1)


def test_an_empty_digest_holds_nothing() -> None:
    digest = Digest.of([], "chain", "epoch")
    assert not any(name in digest for name in _names(1000))
    assert digest.deepest(_names(100), boundaries(100)) == 0


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 600), st.integers(0, 600))
def test_the_deepest_boundary_is_found(length: int, resident: int) -> None:
    chain = _names(length)
    held = [name for depth, name in enumerate(chain[:resident], 1) if is_boundary(depth)]
    depths = boundaries(length)
    expected = max((depth for depth in depths if depth <= resident), default=0)
    found = Digest.of(held, "chain", "epoch").deepest(chain, depths)
    # A false positive can only deepen it; how seldom, the next test tells.
    assert found >= expected
    assert found in (0, *depths)


def test_the_depth_is_seldom_wrong() -> None:
    depths = boundaries(300)
    wrong = 0
    for resident in range(300):
        chain = _names(300, salt=f"{resident}:")
        held = [name for depth, name in enumerate(chain[:resident], 1) if is_boundary(depth)]
        expected = max((depth for depth in depths if depth <= resident), default=0)
        wrong += Digest.of(held, "chain", "epoch").deepest(chain, depths) != expected
    assert wrong <= 20


def test_boundaries_and_the_rule_agree() -> None:
    for length in (
        0,
        1,
        DENSE_BLOCKS,
        DENSE_BLOCKS + STRIDE_BLOCKS - 1,
        DENSE_BLOCKS + STRIDE_BLOCKS,
        500,
        40_000,
    ):
        assert list(boundaries(length)) == [depth for depth in range(1, length + 1) if is_boundary(depth)]


def test_the_longest_prompt_has_few_boundaries() -> None:
    assert len(boundaries(2_000_000)) < 1_500


def test_the_wire_form_reads_back() -> None:
    digest = Digest.of(_names(100), "chain", "epoch")
    assert Digest.from_json(digest.to_json()) == digest


@pytest.mark.parametrize(
    "change",
    [{"probes": 3}, {"bits": "???"}, {"bits": ""}, {"bits": 3}, {"identity": None}, {"names": "many"}],
)
def test_another_form_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Digest.from_json({**Digest.of(_names(3), "chain", "epoch").to_json(), **change})
    with pytest.raises(ValueError):
        Digest.from_json([])
