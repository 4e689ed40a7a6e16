"""The study's algorithm as it was written down, before any change: what `affinity` must not be worse than.

The shallowest anchor that is not hot by a count-min sketch of requests is the key; anchors stand at
multiples of 512 tokens; a hot prefix is assumed on every replica. Written for comparison, not for speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np
from pydantic import Field
from xxhash import xxh3_64_intdigest

from router.placement.ask import Ask, Choice, LazyRanking, Ranking
from router.placement.view import FleetView
from router.settings import Options

_ANCHORS = tuple(512 * count for count in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256))
_NEAR_SECONDS = 0.020
_ROWS, _WIDTH = 4, 1024
_DECAY_SECONDS = 600.0
_KEEP_SECONDS = 1200.0
_DIGEST_SECONDS = 30.0


class Config(Options):
    """Options of the study's algorithm."""

    use_digests: bool = Field(True, description="DIGEST; without, PURE.")


class _Sketch:
    """A count-min sketch with exponential decay: weights grow instead of all shrinking."""

    def __init__(self) -> None:
        self._counts = np.zeros((_ROWS, _WIDTH))
        self.total = 0.0

    def share(self, name: bytes) -> float:
        counts = (self._counts[row, at] for row, at in enumerate(_cells(name)))
        return min(counts) / self.total if self.total else 0.0

    def add(self, names: list[bytes], weight: float) -> None:
        self.total += weight
        for name in names:
            for row, at in enumerate(_cells(name)):
                self._counts[row, at] += weight


class Policy:
    """Scores by wait plus prefill, with a bonus for the home."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._sketch = _Sketch()
        self._seen: dict[bytes, float] = {}

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank as the study does."""
        if not len(fleet):
            return ()
        names, block = (ask.chain.names, ask.chain.block_tokens) if ask.chain else ((), 1)
        anchors = _anchors(len(names), block)
        shares = (self._sketch.share(names[anchor - 1]) for anchor in anchors)
        cold = next((at for at, share in enumerate(shares) if share < 1 / len(fleet)), len(anchors) - 1)
        key = names[anchors[cold] - 1] if anchors else ask.spread
        home, second = (*(fleet.places[name] for name in fleet.ring.walk(key)), -1)[:2]
        seen = self._seen_tokens(names, block, now)
        hot = min(anchors[cold - 1] * block, seen) if anchors and cold > 0 else 0

        expected = np.full(len(fleet), float(hot))
        bonus = 0.8
        expected[home] = max(hot, seen)
        if second >= 0:
            expected[second] = hot + 0.3 * (expected[home] - hot)
        if self._config.use_digests:
            held = fleet.held_tokens(ask, now - _DIGEST_SECONDS)
            if (held >= 0).all():
                expected, bonus = held.astype(np.float64), 0.1
        wait, length = fleet.wait_seconds(now), ask.prompt_tokens
        prefill = fleet.prefill_seconds(length, expected)
        score = wait + prefill
        private = fleet.prefill_seconds(length, hot) - fleet.prefill_seconds(length, length - 1)
        score[home] -= bonus * private[home]

        near = score <= score.min() + _NEAR_SECONDS
        ties = np.array([fleet.tie_break(key, place) for place in range(len(fleet))])
        order = np.lexsort((ties, np.arange(len(fleet)) != home, np.where(near, 0.0, score + 1e9)))

        def choice(place: int) -> Choice:
            epoch = fleet.epochs[place]
            seconds = float(wait[place]), float(prefill[place])
            return Choice(
                fleet.names[place], epoch, int(expected[place]), *seconds, score=float(score[place])
            )

        return LazyRanking.of(order.tolist(), choice)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Count the anchors, and remember the boundaries."""
        names, block = (ask.chain.names, ask.chain.block_tokens) if ask.chain else ((), 1)
        anchors = _anchors(len(names), block)
        self._sketch.add([names[anchor - 1] for anchor in anchors], exp(now / _DECAY_SECONDS))
        for depth in _boundaries(len(names), block):
            self._seen[names[depth - 1]] = now

    def _seen_tokens(self, names: Sequence[bytes], block: int, now: float) -> int:
        depths = _boundaries(len(names), block)
        low, high = 0, len(depths)
        while low < high:
            middle = (low + high) // 2
            if now - self._seen.get(names[depths[middle] - 1], -np.inf) <= _KEEP_SECONDS:
                low = middle + 1
            else:
                high = middle
        return depths[low - 1] * block if low else 0


def _cells(name: bytes) -> list[int]:
    hashed = xxh3_64_intdigest(name)
    return [(hashed >> (16 * row)) % _WIDTH for row in range(_ROWS)]


def _boundaries(block_count: int, block: int) -> range:
    stride = max(1, 512 // block)
    return range(stride, block_count + 1, stride)


def _anchors(block_count: int, block: int) -> list[int]:
    found = {anchor // block for anchor in _ANCHORS if block <= anchor and anchor // block <= block_count}
    return sorted(found | ({block_count} if block_count else set()))
