"""Random numbers as traces need them: bounded lengths, popularity, and what was measured."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import log
from random import Random

# Where the measured distributions of this package are given: shares of the values that lie below.
MEASURED_AT = (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1)


def lognormal_tokens(random: Random, median: float, sigma: float, low: int, high: int) -> int:
    """Draw a length of log-normal distribution, cut to `low` .. `high`."""
    return round(min(high, max(low, random.lognormvariate(log(median), sigma))))


def measured(random: Random, values: Sequence[float]) -> float:
    """Draw from a distribution given by its values at MEASURED_AT, linear between them."""
    share = random.random()
    at = bisect_right(MEASURED_AT, share) - 1
    (low, high), (before, after) = list(pairwise(MEASURED_AT))[at], (values[at], values[at + 1])
    return before + (after - before) * (share - low) / (high - low)


class Zipf:
    """Draws 0 .. count-1, each in inverse proportion to its rank."""

    def __init__(self, count: int) -> None:
        self._sums = list(accumulate(1 / rank for rank in range(1, count + 1)))

    def draw(self, random: Random) -> int:
        """Draw a rank, from 0 on."""
        return bisect_right(self._sums, random.random() * self._sums[-1])
