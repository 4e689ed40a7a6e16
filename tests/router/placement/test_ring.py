"""The ring: the same walk everywhere, fair shares, and little moves when members come and go."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import islice

import pytest
from xxhash import xxh3_128_digest

from router.placement.ring import Ring, tie_break

NAMES = [f"replica-{number}" for number in range(16)]
KEYS = [xxh3_128_digest(str(number).encode()) for number in range(4000)]


def homes(ring: Ring) -> list[str]:
    return [next(ring.walk(key)) for key in KEYS]


def test_a_walk_names_each_once_whatever_the_order_they_were_given_in() -> None:
    ring, other = Ring(NAMES), Ring([*NAMES[::-1], NAMES[3]])
    assert ring.names == other.names == tuple(sorted(NAMES))
    for key in KEYS[:50]:
        walk = list(ring.walk(key))
        assert sorted(walk) == sorted(NAMES)
        assert list(other.walk(key)) == walk
    assert len({tuple(ring.walk(key)) for key in KEYS[:50]}) == 50


def test_homes_are_fair_shares() -> None:
    counts = Counter(homes(Ring(NAMES)))
    fair = len(KEYS) / len(NAMES)
    assert 0.6 * fair < min(counts.values()) <= max(counts.values()) < 1.5 * fair


def test_who_leaves_hands_its_keys_to_those_next_on_the_walk() -> None:
    whole, less = Ring(NAMES), Ring(NAMES[1:])
    heirs: Counter[str] = Counter()
    for key in KEYS:
        first, second = islice(whole.walk(key), 2)
        left = next(less.walk(key))
        assert left == (second if first == NAMES[0] else first)
        heirs[left] += first == NAMES[0]
    # Many take over from one.
    assert sum(count > 0 for count in heirs.values()) >= 10


def test_who_joins_takes_only_its_share() -> None:
    before, after = homes(Ring(NAMES)), homes(Ring([*NAMES, "new"]))
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"new"}
    assert len(moved) < 1.6 * len(KEYS) / 17


@pytest.mark.parametrize("names", [[], ["only"]])
def test_small_rings(names: list[str]) -> None:
    assert [list(Ring(names).walk(key)) for key in KEYS[:5]] == [names] * 5


def test_it_is_the_same_in_another_process() -> None:
    program = (
        "from router.placement.ring import Ring, tie_break\n"
        "print([next(Ring(list('abcdef')).walk(bytes([n]))) for n in range(40)], tie_break(b'k', 'a'))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    mine = [next(Ring(list("abcdef")).walk(bytes([n]))) for n in range(40)], tie_break(b"k", "a")
    assert outputs == {f"{mine[0]} {mine[1]}\n".encode()}


def test_ties_fall_fairly_and_apart_from_the_ring() -> None:
    counts = Counter(max(NAMES, key=lambda name: tie_break(key, name)) for key in KEYS)
    fair = len(KEYS) / len(NAMES)
    assert 0.7 * fair < min(counts.values()) <= max(counts.values()) < 1.3 * fair
    same = sum(
        home == max(NAMES, key=lambda name: tie_break(key, name))
        for key, home in zip(KEYS, homes(Ring(NAMES)), strict=True)
    )
    assert same < 2 * fair
