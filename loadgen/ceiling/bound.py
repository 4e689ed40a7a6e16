"""The bound: tokens that one cache without limit holds, LRU caches by size, and replicas picked at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.ceiling.stack import BlockStack

DEFAULT_REPLICAS = (1, 2, 4, 8, 16, 32, 64)
DEFAULT_MAX_BLOCKS = 16 * 1024 * 1024
_LARGEST_SIZE = 1 << 40


@dataclass(frozen=True, slots=True)
class Bound:
    """What caches could hold of a row of prompts.

    `hit_tokens` is one cache without limit; `by_blocks` the tokens an LRU cache of so many blocks holds;
    `by_replicas` those that so many unlimited caches hold if each request goes to one at random (if each
    goes where its prefix is, it is `hit_tokens` for any number). `forgotten_blocks` is not 0 where the
    prompts had more different blocks than memory was allowed for: then no figure counts what is older.
    """

    requests: int
    block_tokens: int
    prompt_tokens: int
    hit_tokens: int
    distinct_blocks: int
    forgotten_blocks: int
    by_blocks: tuple[tuple[int, int], ...]
    by_replicas: tuple[tuple[int, float], ...]

    @property
    def hit_ratio(self) -> float:
        """Share of the prompt tokens that one cache without limit holds."""
        return self.hit_tokens / max(1, self.prompt_tokens)

    def to_json(self) -> dict[str, Any]:
        """Return the bound as JSON."""
        total = max(1, self.prompt_tokens)
        return {
            "requests": self.requests,
            "block_tokens": self.block_tokens,
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.hit_tokens,
            "hit_ratio": round(self.hit_ratio, 6),
            "distinct_blocks": self.distinct_blocks,
            "forgotten_blocks": self.forgotten_blocks,
            "by_cache": [
                {
                    "blocks": blocks,
                    "tokens": blocks * self.block_tokens,
                    "hit_tokens": hit,
                    "hit_ratio": round(hit / total, 6),
                }
                for blocks, hit in self.by_blocks
            ],
            "by_replicas_at_random": [
                {"replicas": replicas, "hit_tokens": round(hit), "hit_ratio": round(hit / total, 6)}
                for replicas, hit in self.by_replicas
            ],
        }


class BoundMeter:
    """Takes prompts in the order of their arrival, one at a time; memory grows with different blocks only."""

    def __init__(
        self,
        block_tokens: int,
        sizes_blocks: Sequence[int] = (),
        replicas: Sequence[int] = DEFAULT_REPLICAS,
        max_blocks: int = DEFAULT_MAX_BLOCKS,
    ) -> None:
        """`sizes_blocks` are the caches to tell of; none are powers of two up to the working set."""
        self._block_tokens = block_tokens
        self._stack = BlockStack(max_blocks)
        self._chosen = bool(sizes_blocks)
        sizes = sorted(set(sizes_blocks)) or [1 << power for power in range(4, _LARGEST_SIZE.bit_length())]
        self._sizes = np.array(sizes, dtype=np.int64)
        self._by_size = np.zeros(len(sizes), dtype=np.int64)
        self._replicas = tuple(replicas)
        self._away = 1 - 1 / np.array(self._replicas, dtype=np.float64)
        self._at_random = np.zeros(len(self._replicas))
        self._requests = self._prompt_tokens = self._hit_tokens = 0

    def add(self, ids: Sequence[int], prompt_tokens: int) -> int:
        """Take a prompt's full blocks; return the tokens of it that a cache without limit holds.

        One token of a prompt is always computed.
        """
        reuses = self._stack.use(ids)
        self._requests += 1
        self._prompt_tokens += prompt_tokens
        if not reuses:
            return 0
        blocks = np.array([reuse.blocks for reuse in reuses], dtype=np.int64)
        distances = np.array([reuse.distance for reuse in reuses], dtype=np.int64)
        uses = np.array([reuse.uses for reuse in reuses], dtype=np.float64)
        held = np.clip(self._sizes[:, None] - distances, 0, blocks).sum(axis=1) * self._block_tokens
        self._by_size += np.minimum(held, prompt_tokens - 1)
        # A replica has a block if any of the former requests with it went there.
        likely = (1 - self._away[:, None] ** uses) @ blocks.astype(np.float64) * self._block_tokens
        self._at_random += np.minimum(likely, prompt_tokens - 1)
        hit = min(int(blocks.sum()) * self._block_tokens, prompt_tokens - 1)
        self._hit_tokens += hit
        return hit

    def bound(self) -> Bound:
        """Return what the prompts so far come to."""
        sizes = [(int(size), int(hit)) for size, hit in zip(self._sizes, self._by_size, strict=True)]
        if not self._chosen:
            # Up to the first that holds everything; what is larger holds no more.
            last = next(
                (at for at, (size, _) in enumerate(sizes) if size >= self._stack.distinct), len(sizes)
            )
            sizes = sizes[: last + 1]
        return Bound(
            self._requests,
            self._block_tokens,
            self._prompt_tokens,
            self._hit_tokens,
            self._stack.distinct,
            self._stack.forgotten,
            tuple(sizes),
            tuple(zip(self._replicas, self._at_random.tolist(), strict=True)),
        )
