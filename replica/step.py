"""A step: what it computes, what it brings each sequence, and what all steps so far add up to."""

from __future__ import annotations

from dataclasses import dataclass

from replica.batch import Batch
from replica.load import PrefillShape
from replica.sequence import Finish, Sequence
from router.wire.report import PrefillCost


@dataclass(slots=True)
class Counts:
    """What has happened so far, in tokens unless said otherwise; only ever grows.

    `prefix_queries` and `prefix_hits` count each prompt once, when it is first scheduled. What is computed
    again after a preemption is in `recomputed_tokens` and nowhere else, what is computed for nobody yet in
    `prewarm_tokens`.
    """

    prefix_queries: int = 0
    prefix_hits: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    prewarm_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """What a step brought one sequence. `token` is None where only the end is told.

    `cached_tokens` of its prompt were found in the pool, and `evicted_tokens` right behind them were there
    once; None where nothing is kept. Computing the rest took `prefill_seconds`, the wait not counted.
    """

    id: int
    token: int | None
    finish: Finish | None
    cached_tokens: int = 0
    evicted_tokens: int | None = None
    prefill_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """A scheduled step: the batch for the runner, and the sequences in the batch's order."""

    batch: Batch
    sequences: tuple[Sequence, ...]
    prefill: PrefillShape
    decodes: int

    def charge(self, cost: PrefillCost, seconds: float) -> None:
        """Divide what the step took among the prompts it computed, in proportion to S of their parts."""
        parts = []
        for sequence, work in zip(self.sequences, self.batch.works, strict=True):
            if not sequence.begun:
                until = work.start + len(work.token_ids)
                part = PrefillShape.of(until, work.start, work.sample).seconds(cost)
                parts.append((sequence, part))
        total = sum(part for _, part in parts)
        for sequence, part in parts:
            sequence.prefill_seconds += seconds * part / total if total > 0 else 0.0
