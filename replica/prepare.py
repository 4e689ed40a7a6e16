"""From a canonical prompt to a sequence: rendered, tokenised, named, and held against the context."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from replica.api import GenerationRequest
from replica.resume import take_up
from replica.sequence import Sequence
from router.chain.chain import TOKEN_BYTES, Chain, unpack_tokens
from router.chain.namer import ChainNamer
from router.chain.prompt import CanonicalPrompt
from router.chain.template import RenderError
from router.chain.tokenizer import ModelTokenizer
from router.wire.errors import ApiError


@dataclass(frozen=True, slots=True)
class Preparer:
    """Makes sequences. Thread-safe: long prompts are prepared away from the event loop.

    `context_tokens` is what the model takes and the pool holds; `end_ids` end an answer unless the request
    says otherwise; token ids at or above `vocabulary` are refused.
    """

    namer: ChainNamer
    context_tokens: int
    vocabulary: int
    end_ids: frozenset[int]
    default_answer_tokens: int

    def sequence(self, prompt: CanonicalPrompt, request: GenerationRequest) -> Sequence:
        """Make the sequence of one prompt; ApiError 400 if it cannot be rendered or is too long."""
        try:
            chain = self.namer.chain(prompt)
        except RenderError as error:
            raise ApiError(400, str(error), param="messages") from error
        tokens = _tokens(chain)
        if not tokens:
            raise ApiError(400, "the prompt has no tokens", param="messages" if request.chat else "prompt")
        if prompt.tokens is not None and max(tokens) >= self.vocabulary:
            raise ApiError(400, f"token ids must be below {self.vocabulary}", param="prompt")
        end_ids = request.end_ids if request.ignore_end else request.end_ids | self.end_ids
        sequence = Sequence(
            tokens=tokens,
            prompt_tokens=len(tokens),
            names=list(chain.names),
            keys=prompt.keys.keyed_blocks(self.namer.block_tokens),
            sampling=request.sampling,
            max_tokens=self._answer_tokens(len(tokens), request),
            end_ids=end_ids,
            salt=prompt.keys.salt,
        )
        if request.resumed is not None:
            take_up(sequence, request.resumed, self.vocabulary, self.namer, self.namer.block_tokens)
        return sequence

    def _answer_tokens(self, prompt_tokens: int, request: GenerationRequest) -> int:
        room = self.context_tokens - prompt_tokens
        wanted = request.max_tokens
        if room < 1 or (wanted is not None and wanted > room):
            asked = f"{prompt_tokens} in the prompt and {wanted or 1} for the answer"
            raise ApiError(
                400,
                f"this model's maximum context length is {self.context_tokens} tokens; requested: {asked}",
                code="context_length_exceeded",
                param="messages" if request.chat else "prompt",
            )
        return min(room, self.default_answer_tokens) if wanted is None else wanted


def read_end_ids(directory: Path, tokenizer: ModelTokenizer) -> frozenset[int]:
    """Collect the tokens that end an answer from all places where model directories state them."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.exists():
            stated = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            ids.update(_integers(stated if isinstance(stated, list) else [stated]))
    if "eos_token" in tokenizer.special:
        ids.update(_integers([tokenizer.tokenizer.token_to_id(tokenizer.special["eos_token"])]))
    return frozenset(ids)


def read_sampling_defaults(directory: Path) -> dict[str, float]:
    """Return the temperature and top_p that the model's makers recommend, for requests that set none."""
    path = directory / "generation_config.json"
    stated = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {
        name: float(stated[name])
        for name in ("temperature", "top_p")
        if isinstance(stated.get(name), int | float)
    }


def _integers(values: Iterable[object]) -> Iterable[int]:
    return (value for value in values if isinstance(value, int))


def _tokens(chain: Chain) -> list[int]:
    # The words of a byte chain are its tokens; the last is filled up with zero bytes.
    return unpack_tokens(chain.data + b"\0" * (-len(chain.data) % TOKEN_BYTES))
