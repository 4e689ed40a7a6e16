"""Prompts made from a trace: equal block ids give equal tokens, and lengths are the trace's."""

from __future__ import annotations

from array import array
from functools import lru_cache
from hashlib import shake_128
from sys import byteorder
from typing import Literal

from loadgen.traces.trace import Trace, TraceRequest

PromptForm = Literal["tokens", "text"]

# Three letters and a space each: a token of most vocabularies, and one of a chain over bytes.
_WORDS = (
    *(
        "the",
        "and",
        "for",
        "are",
        "but",
        "not",
        "you",
        "all",
        "any",
        "can",
        "had",
        "her",
        "was",
        "one",
        "our",
    ),
    *(
        "out",
        "day",
        "get",
        "has",
        "him",
        "his",
        "how",
        "man",
        "new",
        "now",
        "old",
        "see",
        "two",
        "way",
        "who",
    ),
    *(
        "boy",
        "did",
        "its",
        "let",
        "put",
        "say",
        "she",
        "too",
        "use",
        "car",
        "cat",
        "dog",
        "eat",
        "end",
        "far",
    ),
    *(
        "few",
        "got",
        "hot",
        "job",
        "key",
        "law",
        "lay",
        "leg",
        "lie",
        "lot",
        "low",
        "map",
        "may",
        "mix",
        "sun",
    ),
)
# Blocks kept ready: with 512 tokens each, 8 MiB.
_KEPT_BLOCKS = 4096


class Prompts:
    """Makes the prompts of one trace, one at a time, as token ids or as text.

    Token ids lie in `first_token_id` .. `first_token_id + token_ids - 1`, to keep off special tokens. As
    text, a token is one short word, so that lengths are exact only where engines see it so, too.
    """

    def __init__(
        self, trace: Trace, form: PromptForm = "tokens", first_token_id: int = 1000, token_ids: int = 20_000
    ) -> None:
        self._trace = trace
        self._form = form
        self._first = first_token_id
        self._count = token_ids
        make = self._words if form == "text" else self._tokens
        self._block = lru_cache(_KEPT_BLOCKS)(lambda block: make(b"block %d" % block, trace.block_tokens))
        self._make = make

    def of(self, request: TraceRequest, number: int) -> list[int] | str:
        """Return the prompt of the trace's `number`-th request.

        A partial block at its end is a block's beginning if it has an id, else the request's own.
        """
        full = self._trace.full_blocks(request)
        rest = request.prompt_tokens - len(full) * self._trace.block_tokens
        data = b"".join(map(self._block, full))
        if rest and len(request.block_ids) > len(full):
            data += self._make(b"block %d" % request.block_ids[-1], rest)
        elif rest:
            data += self._make(b"request %d" % number, rest)
        if self._form == "text":
            return data.decode()
        ids = array("H", data)
        return [self._first + token for token in ids]

    def _tokens(self, seed: bytes, count: int) -> bytes:
        drawn = array("H", shake_128(seed).digest(2 * count))
        if byteorder == "big":
            drawn.byteswap()
        return array("H", [token % self._count for token in drawn]).tobytes()

    def _words(self, seed: bytes, count: int) -> bytes:
        drawn = shake_128(seed).digest(count)
        return "".join([f"{_WORDS[byte % len(_WORDS)]} " for byte in drawn]).encode()
