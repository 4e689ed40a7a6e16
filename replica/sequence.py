"""A sequence: one prompt and its answer, with what the scheduler knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from replica.batch import Sampling
from replica.block_pool import Block


class Finish(StrEnum):
    """Why a sequence ended, in OpenAI's words where they have one. A prewarm ends as computed."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    COMPUTED = "computed"


@dataclass(slots=True, eq=False)
class Sequence:
    """`id` is given on submission, `arrival` when it is queued.

    `tokens` is the prompt, then the answer; the KV of the first `computed` of them is in `blocks`.

    `salt` is the tenant's, told on as it is part of what names stand for. A `prewarm` has no answer: its
    whole blocks are computed so that they are found later.

    Of an answer that began elsewhere the first `resumed_tokens` are known from the start.

    `names` starts as the chain of what is known, named once, and grows as answer blocks fill; the first
    `named` of the blocks carry theirs in the pool. `keys` holds encoded keys by block index, `end_ids` the
    tokens that end an answer. `prefilling` lasts until all that is known is computed. `cached_tokens` is what
    the first scheduling found in the pool, None before it; `evicted_tokens` and `prefill_seconds` as in
    Output.
    """

    tokens: list[int]
    prompt_tokens: int
    names: list[bytes]
    keys: Mapping[int, bytes]
    sampling: Sampling
    max_tokens: int
    end_ids: frozenset[int] = frozenset()
    salt: str | None = None
    prewarm: bool = False
    resumed_tokens: int = 0
    id: int = 0
    arrival: int = 0
    prefilling: bool = True
    computed: int = 0
    named: int = 0
    cached_tokens: int | None = None
    evicted_tokens: int | None = None
    prefill_seconds: float = 0.0
    blocks: list[Block] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    preemptions: int = 0

    @property
    def sampled(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def begun(self) -> bool:
        """Whether a token of the answer was sampled here."""
        return self.sampled > self.resumed_tokens

    @property
    def uncomputed(self) -> int:
        """Known tokens whose KV is missing; 1 before each step of a decoding sequence."""
        return len(self.tokens) - self.computed

    def finish_of(self, token: int) -> Finish | None:
        """Say whether `token`, sampled last and appended already, ends the answer."""
        if token in self.end_ids:
            return Finish.STOP
        return Finish.LENGTH if self.sampled >= self.max_tokens else None


def blocks_needed(tokens: int, block_tokens: int) -> int:
    """Blocks that hold the KV of `tokens` tokens."""
    return -(-tokens // block_tokens)
