"""Block ids of real prompts: the names that the router gives their blocks, numbered."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from loadgen.traces.request_log import CHAT_PATH, COMPLETION_PATH, MESSAGES_PATH
from loadgen.traces.trace import TraceError, TraceRequest
from router.chain.namer import ChainNamer
from router.chain.options import ChainOptions
from router.chain.prompt import CanonicalPrompt, PromptError, chat_prompt, first_completion_prompt
from router.chain.template import RenderError
from router.chain.tokenizer import ModelTokenizer


class PromptNaming:
    """Numbers the blocks of prompts, so that equal prefixes get equal ids.

    Without a tokenizer's directory, and for prompts that text alone does not tell, a token is taken for four
    bytes of the canonical prompt.
    """

    def __init__(self, block_tokens: int, tokenizer_directory: Path | None = None) -> None:
        """TraceError if the tokenizer cannot be read."""
        chain = ChainOptions()
        self.block_tokens = block_tokens
        self._bytes = ChainNamer(chain.algorithm, chain.seed, block_tokens, None)
        self._tokens = self._bytes
        if tokenizer_directory is not None:
            try:
                tokenizer = ModelTokenizer.from_directory(tokenizer_directory)
            except (OSError, ValueError) as error:
                raise TraceError(f"no tokenizer can be read from {tokenizer_directory}: {error}") from error
            self._tokens = ChainNamer(chain.algorithm, chain.seed, block_tokens, tokenizer)
        self._ids: dict[bytes, int] = {}
        self._next = count()

    def request(
        self,
        path: str,
        body: Mapping[str, Any],
        arrival_seconds: float,
        output_tokens: int,
        session: str | None = None,
    ) -> TraceRequest:
        """Return the request of a body sent to `path`; TraceError if it is not one."""
        try:
            prompt = _prompt(path, body)
            chain = (self._tokens if prompt.renderable else self._bytes).chain(prompt)
        except (PromptError, RenderError) as error:
            raise TraceError(str(error)) from error
        blocks = [self._id(name) for name in chain.names]
        if chain.prompt_tokens % self.block_tokens:
            blocks.append(next(self._next))
        return TraceRequest(arrival_seconds, chain.prompt_tokens, output_tokens, tuple(blocks), session)

    def text_tokens(self, text: str) -> int:
        """Return the length of a text that stands alone, in tokens."""
        if self._tokens.tokenizer is not None:
            return len(self._tokens.tokenizer.tokenizer.encode(text, add_special_tokens=False).ids)
        return -(-len(text.encode()) * self.block_tokens // self._bytes.block_bytes)

    def _id(self, name: bytes) -> int:
        known = self._ids.get(name)
        if known is None:
            known = self._ids[name] = next(self._next)
        return known


def _prompt(path: str, body: Mapping[str, Any]) -> CanonicalPrompt:
    if path.endswith(CHAT_PATH):
        return chat_prompt(body)
    if path.endswith(COMPLETION_PATH):
        return first_completion_prompt(body)
    if path.endswith(MESSAGES_PATH):
        # The system prompt stands beside the messages, and before them in what the model reads.
        system = body.get("system")
        messages = body.get("messages")
        before = [{"role": "system", "content": system}] if system is not None else []
        return chat_prompt({**body, "messages": before + messages if isinstance(messages, list) else None})
    raise TraceError(f"requests to {path} cannot be named")
