"""What one engine step asks a runner to compute, and the promise every runner keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. Temperature 0 is greedy; top_p keeps the smallest set of that mass."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence's share of a step.

    `token_ids` are computed at positions start .. start+len-1; the KV of positions below `start` is already
    in the blocks of `block_ids` (the block table, one id per block, covering start+len tokens at least).
    `sample` is true when the last of these tokens is the last known one, so the next token is wanted.
    `sampled` counts the tokens sampled so far for this sequence: with the seed it names the random draw, so
    that a recomputed sequence draws the same tokens again.
    """

    request_id: int
    token_ids: Sequence[int]
    start: int
    block_ids: Sequence[int]
    sample: bool
    sampling: Sampling
    sampled: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """The work of one step: decodes (one token each) and prefill chunks, mixed."""

    works: tuple[Work, ...]

    @property
    def tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(len(work.token_ids) for work in self.works)


class Runner(Protocol):
    """Computes batches. Called from the engine's own thread, one batch at a time."""

    @property
    def block_tokens(self) -> int:
        """Tokens a KV block holds."""

    @property
    def block_count(self) -> int:
        """KV blocks there is room for; block ids are 0 .. block_count-1."""

    @property
    def context_tokens(self) -> int:
        """Longest sequence (prompt plus answer) that the model takes."""

    def run(self, batch: Batch) -> list[int | None]:
        """Compute the batch; return the sampled token of each work, or None where none was asked for."""

    def close(self) -> None:
        """Release what the runner holds."""
