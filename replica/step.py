"""A step: what it computes, what it brings each sequence, and what all steps so far add up to."""

from __future__ import annotations

from dataclasses import dataclass

from replica.batch import Batch
from replica.load import PrefillShape
from replica.sequence import Finish, Sequence


@dataclass(slots=True)
class Counts:
    """What has happened so far, in tokens unless said otherwise; only ever grows.

    `prefix_queries` and `prefix_hits` count each prompt once, when it is first scheduled. What is computed
    again after a preemption is in `recomputed_tokens` and nowhere else.
    """

    prefix_queries: int = 0
    prefix_hits: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """What a step brought one sequence. `token` is None where only the end is told.

    `cached_tokens` of its prompt were found in the pool, and `evicted_tokens` right behind them were there
    once; None where nothing is kept.
    """

    id: int
    token: int | None
    finish: Finish | None
    cached_tokens: int = 0
    evicted_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A scheduled step: the batch for the runner, and the sequences in the batch's order."""

    batch: Batch
    sequences: tuple[Sequence, ...]
    prefill: PrefillShape
    decodes: int
