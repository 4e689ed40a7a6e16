"""What a replica of the soak answers: a text that the request's seed alone decides, token for token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from zlib import crc32

from replica.batch import Batch
from replica.runner.echo import EchoRunner
from router.chain.chain import TOKEN_BYTES, unpack_tokens
from router.wire.report import PrefillCost

# One of these is three tokens, and a character of it begins in the second and ends in the third.
_PIECE_TOKENS = 3


@lru_cache(maxsize=65_536)
def _piece(seed: int, number: int) -> bytes:
    mark = crc32(b"%d %d" % (seed, number))
    return f"{mark:08x}"[:6].encode() + f"{chr(0x4E00 + mark % 5000)}é ".encode()


@lru_cache(maxsize=65_536)
def _tokens_of_piece(seed: int, number: int) -> Sequence[int]:
    return unpack_tokens(_piece(seed, number))


def token(seed: int, number: int) -> int:
    """Return token `number` of the answer to `seed`."""
    return _tokens_of_piece(seed, number // _PIECE_TOKENS)[number % _PIECE_TOKENS]


def text(seed: int, tokens: int) -> str:
    """Return an answer of so many tokens; a character that is cut at its end shows as U+FFFD."""
    data = b"".join(_piece(seed, number) for number in range(-(-tokens // _PIECE_TOKENS)))
    return data[: tokens * TOKEN_BYTES].decode("utf-8", "replace")


class SeededRunner(EchoRunner):
    """The echo runner, but for what it answers: no two requests are answered alike, wherever they run."""

    def __init__(
        self,
        *,
        prefill: PrefillCost,
        decode_seconds: float,
        block_tokens: int,
        block_count: int,
        context_tokens: int,
    ) -> None:
        super().__init__(
            [0],
            prefill=prefill,
            decode_seconds=decode_seconds,
            block_tokens=block_tokens,
            block_count=block_count,
            context_tokens=context_tokens,
        )

    def run(self, batch: Batch) -> list[int | None]:
        """See replica.batch.Runner."""
        super().run(batch)
        return [token(work.sampling.seed, work.sampled) if work.sample else None for work in batch.works]
