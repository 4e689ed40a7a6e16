"""Chooses the next token from logits: greedy, or drawn from a nucleus by a draw that can be repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from replica.batch import Work

_COLDEST = 1e-4
"""Below this temperature every draw is the best token already; dividing by less would overflow."""

_FIRST_LOOK = 512
"""A nucleus almost always lies within so many tokens; all are sorted only where it does not."""


def choose(logits: Tensor, works: Sequence[Work]) -> list[int]:
    """One token for each row of `logits` [works, vocabulary]; row i follows `works[i].sampling`."""
    if not works:
        return []
    best = logits.max(dim=-1)
    if not torch.isfinite(best.values).all():
        raise FloatingPointError("the model computed logits that are not finite")
    chosen: list[int] = best.indices.tolist()
    for row, work in enumerate(works):
        sampling = work.sampling
        if sampling.temperature >= _COLDEST:
            share = uniform(sampling.seed, work.sampled)
            chosen[row] = draw(logits[row], sampling.temperature, sampling.top_p, share)
    return chosen


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) that depends on the seed and the index alone, whatever else runs beside it."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2.0**53


def draw(logits: Tensor, temperature: float, top_p: float, share: float) -> int:
    """The token at `share` in [0, 1) of the nucleus: the fewest best tokens whose mass reaches `top_p`."""
    scaled = (logits.double() - logits.max()) / temperature
    mass = scaled.softmax(dim=-1)
    if top_p >= 1.0:
        return _at(mass.cumsum(0), share)
    size = min(_FIRST_LOOK, mass.shape[0])
    values, tokens = mass.topk(size)
    if values.sum() < top_p:
        values, tokens = mass.sort(descending=True)
    heights = values.cumsum(0)
    # The token that crosses top_p belongs to the nucleus; the best one always does.
    kept = int((heights < top_p).sum()) + 1
    return int(tokens[_at(heights[:kept], share)])


def _at(heights: Tensor, share: float) -> int:
    """The first step of the rising `heights` above `share` of their end."""
    place = torch.searchsorted(heights, share * heights[-1], right=True)
    return min(int(place), heights.shape[0] - 1)
