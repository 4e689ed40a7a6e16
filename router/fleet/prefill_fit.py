"""Fits S, the seconds of a prefill, to what prefills took: recursive, robust, and never negative."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, isfinite, log, sqrt

from router.wire.report import PrefillCost

# How far off the start may be: a factor of ten in all, and of four in each part by itself. Both are one
# standard deviation: several of them are learned, too, with more evidence.
_SCALE_VARIANCE = log(10) ** 2
_PART_VARIANCE = log(4) ** 2
_FARTHEST = log(1000)
# Bounds of the noise of one observation, as the standard deviation of its logarithm.
_LEAST_NOISE = 0.03
_MOST_NOISE = 1.0
_NOISE_GAIN = 0.1
_MEDIAN = 0.6745
# Deviations count for at most this many of their standard deviations: machines are held up, never sped up.
_CLIP_SLOW = 1.5
_CLIP_FAST = 3.0
_LARGEST_SECONDS = 1e6
_LEAST_SECONDS = 1e-9

Matrix = list[list[float]]


class PrefillFit:
    """A Kalman filter over the logarithms of the three coefficients, observing the logarithm of seconds.

    Factors keep coefficients positive, make errors relative, and let a machine that is slower in all parts
    be learned at once. The start pulls with a strength that falls with evidence. An observation counts for
    about `memory` others; outliers are clipped in units of the noise, which is learned as well: a replica
    that is another than it was looks noisy at first, and so is believed. A coefficient that starts at zero
    stays there.
    """

    def __init__(self, start: PrefillCost, memory: int = 100, noise: float = 0.3) -> None:
        self._start = start
        self._forget = (2.0 / memory) ** 2
        self._noise = max(_LEAST_NOISE, min(_MOST_NOISE, noise)) ** 2
        self._factors = [0.0, 0.0, 0.0]
        self._covariance = _prior()
        self.observations = 0
        self.cost = start

    def observe(self, features: Sequence[float], seconds: float) -> None:
        """Take in a prefill by its features; what cannot be a measurement is ignored.

        They are the number of prompts completed, of tokens computed, and the sum of u * (L - u / 2).
        """
        parts = _parts(self.cost, features)
        predicted = sum(parts)
        if not (_LEAST_SECONDS <= seconds <= _LARGEST_SECONDS and _LEAST_SECONDS <= predicted < inf):
            return
        self.observations += 1
        self._loosen()
        shares = [part / predicted for part in parts]
        gains = [sum(row[k] * shares[k] for k in range(3)) for row in self._covariance]
        own = sum(share * gain for share, gain in zip(shares, gains, strict=True))
        total = own + self._noise
        error = log(seconds / predicted)
        # As Huber weighs: what lies far out says as much as what lies just within.
        clip = (_CLIP_SLOW if error > 0 else _CLIP_FAST) * sqrt(total)
        weight = min(1.0, clip / max(abs(error), _LEAST_SECONDS))
        self._factors = [
            max(-_FARTHEST, min(_FARTHEST, factor + weight * gain / total * error))
            for factor, gain in zip(self._factors, gains, strict=True)
        ]
        self._covariance = [
            [value - weight * gains[j] * gains[k] / total for k, value in enumerate(row)]
            for j, row in enumerate(self._covariance)
        ]
        # Towards the median of deviations, which a few that are far out do not move.
        larger = abs(error) > _MEDIAN * sqrt(total)
        noise = self._noise * (1.0 + _NOISE_GAIN if larger else 1.0 - _NOISE_GAIN)
        self._noise = max(_LEAST_NOISE**2, min(_MOST_NOISE**2, noise))
        self.cost = self._priced()

    def variance(self, features: Sequence[float]) -> float:
        """Return the variance of the logarithm of S for prefills of these features."""
        parts = _parts(self.cost, features)
        total = sum(parts)
        if not 0 < total < inf:
            return _SCALE_VARIANCE
        shares = [part / total for part in parts]
        return max(
            0.0, sum(shares[j] * shares[k] * self._covariance[j][k] for j in range(3) for k in range(3))
        )

    def _loosen(self) -> None:
        """Let what was learned age: towards the start, by as much as the memory is short."""
        share = min(0.5, self._forget * self._noise / (_SCALE_VARIANCE + _PART_VARIANCE))
        prior = _prior()
        self._covariance = [
            [(1.0 - share) * value + share * prior[j][k] for k, value in enumerate(row)]
            for j, row in enumerate(self._covariance)
        ]
        kept = sqrt(1.0 - share)
        self._factors = [factor * kept for factor in self._factors]

    def _priced(self) -> PrefillCost:
        base, token, context = (exp(factor) for factor in self._factors)
        return PrefillCost(
            self._start.base_seconds * base,
            self._start.per_token_seconds * token,
            self._start.per_token_context_seconds * context,
        )


def features_of(prompt_tokens: int, hit_tokens: int) -> tuple[float, float, float]:
    """Return what S(prompt_tokens, hit_tokens) is linear in."""
    uncached = max(1, prompt_tokens - hit_tokens)
    return 1.0, float(uncached), uncached * (prompt_tokens - uncached / 2)


def seconds_of(cost: PrefillCost, features: Sequence[float]) -> float:
    """Return S of these features."""
    return sum(_parts(cost, features))


def _parts(cost: PrefillCost, features: Sequence[float]) -> tuple[float, float, float]:
    prompts, tokens, context = features
    if not all(isfinite(value) and value >= 0 for value in features):
        return 0.0, 0.0, 0.0
    return (
        cost.base_seconds * prompts,
        cost.per_token_seconds * tokens,
        cost.per_token_context_seconds * context,
    )


def _prior() -> Matrix:
    return [[_SCALE_VARIANCE + (_PART_VARIANCE if j == k else 0.0) for k in range(3)] for j in range(3)]
