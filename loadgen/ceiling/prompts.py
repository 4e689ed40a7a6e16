"""Names the blocks of logged prompts: over a model's tokens where its tokenizer is given, else over bytes."""

from __future__ import annotations

from pathlib import Path

from loadgen.traces.request_log import MESSAGES_PATH, LoggedRequest
from router.chain.algorithms import ALGORITHMS
from router.chain.namer import BYTES_PER_TOKEN, ChainNamer
from router.chain.prompt import CanonicalPrompt, PromptError, chat_prompt, first_completion_prompt
from router.chain.template import RenderError
from router.chain.tokenizer import ModelTokenizer
from router.observe.layout.units import Units

_SEED = "kvring"


class PromptNamer:
    """Names prompts in blocks of `block_tokens`.

    Bytes stand for tokens at four to one, in the order that the client sent them, JSON keys included.
    `by_bytes` counts the prompts that a tokenizer was given for and could not be used on.
    """

    def __init__(self, block_tokens: int, tokenizer_directory: Path | None = None) -> None:
        """Load the tokenizer; OSError or ValueError where it cannot be read."""
        self._block_tokens = block_tokens
        self._algorithm = ALGORITHMS["xxh3"]
        self._root = self._algorithm.root(_SEED)
        self._tokens = None
        if tokenizer_directory is not None:
            tokenizer = ModelTokenizer.from_directory(tokenizer_directory)
            self._tokens = ChainNamer("xxh3", _SEED, block_tokens, tokenizer)
        self.by_bytes = 0

    def name(self, request: LoggedRequest, units: Units) -> tuple[list[int], int]:
        """Return the ids of the prompt's full blocks, and its length in tokens."""
        if self._tokens is not None:
            try:
                chain = self._tokens.chain(_canonical(request))
                return [int.from_bytes(name, "little") for name in chain.names], chain.prompt_tokens
            except (PromptError, RenderError):
                self.by_bytes += 1
        data = b"".join(unit.rendered() for unit in (*units.tools, *units.messages))
        keys = {0: repr(units.keys).encode("utf-8", "surrogatepass")}
        block_bytes = self._block_tokens * BYTES_PER_TOKEN
        names = self._algorithm.name_blocks(self._root, data, block_bytes, keys, 0)
        return [int.from_bytes(name, "little") for name in names], max(1, len(data) // BYTES_PER_TOKEN)


def _canonical(request: LoggedRequest) -> CanonicalPrompt:
    if request.path == MESSAGES_PATH:
        raise PromptError("this form is named by bytes", "messages")
    read = chat_prompt if "messages" in request.body else first_completion_prompt
    prompt = read(request.body)
    if not prompt.renderable:
        raise PromptError("text alone does not tell this prompt's tokens", "messages")
    return prompt
