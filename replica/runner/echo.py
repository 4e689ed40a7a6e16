"""The runner without a model: it takes the time that a model would take, and answers with a fixed text."""

from __future__ import annotations

from collections.abc import Sequence
from time import sleep

from replica.batch import Batch, Work
from router.wire.report import PrefillCost

# A step that took no time would keep the interpreter from the thread that serves; a model's never does.
_LEAST_SECONDS = 2e-4


class EchoRunner:
    """Implements replica.batch.Runner. Token i of every answer is `filler[i % len(filler)]`.

    A step takes S of each prefill, in the shares that it is cut into, plus `decode_seconds` if it decodes,
    and 0.2 ms at least.
    """

    def __init__(
        self,
        filler: Sequence[int],
        *,
        prefill: PrefillCost,
        decode_seconds: float,
        block_tokens: int,
        block_count: int,
        context_tokens: int,
    ) -> None:
        if not filler:
            raise ValueError("the echo runner needs something to answer")
        self._filler = tuple(filler)
        self._prefill = prefill
        self._decode_seconds = decode_seconds
        self._block_tokens = block_tokens
        self._block_count = block_count
        self._context_tokens = min(context_tokens, block_count * block_tokens)

    @property
    def block_tokens(self) -> int:
        """Tokens a KV block holds."""
        return self._block_tokens

    @property
    def block_count(self) -> int:
        """KV blocks there is room for."""
        return self._block_count

    @property
    def context_tokens(self) -> int:
        """Longest sequence taken, prompt and answer together."""
        return self._context_tokens

    def run(self, batch: Batch) -> list[int | None]:
        """See replica.batch.Runner."""
        sleep(max(_LEAST_SECONDS, self.seconds(batch)))
        return [
            self._filler[work.sampled % len(self._filler)] if work.sample else None for work in batch.works
        ]

    def seconds(self, batch: Batch) -> float:
        """Return how long the batch takes."""
        decodes = [work for work in batch.works if _decodes(work)]
        prefills = (work for work in batch.works if not _decodes(work))
        return sum(map(self._prefill_seconds, prefills)) + (self._decode_seconds if decodes else 0.0)

    def close(self) -> None:
        """Nothing is held."""

    def _prefill_seconds(self, work: Work) -> float:
        length = work.start + len(work.token_ids)
        seconds = self._prefill.seconds(length, work.start)
        # A prompt cut into chunks pays the base once: with the last of them.
        return seconds if work.sample else seconds - self._prefill.base_seconds


def _decodes(work: Work) -> bool:
    return work.sampled > 0 and len(work.token_ids) == 1
