"""Prepare: from a request's body to an ask, and to the bytes that go upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from xxhash import xxh3_128_digest

from router.chain.chain import Chain
from router.chain.namers import Namers
from router.chain.options import ChainOptions
from router.chain.prompt import CanonicalPrompt, PromptError, chat_prompt, first_completion_prompt
from router.chain.template import RenderError
from router.config import LimitOptions, ModelOptions
from router.observe.layout.watch import LayoutWatch
from router.placement.ask import Ask
from router.wire.body import parse_body
from router.wire.errors import ApiError

# Bodies up to this size are read and named at once: under 5 ms; longer ones in a thread.
_INLINE_BYTES = 4096
_LONGEST_SESSION = 1024

_Made = TypeVar("_Made")
ReadPrompt = Callable[[Mapping[str, Any]], CanonicalPrompt]

# A request with several prompts goes to one replica as a whole, by its first.
READERS: Mapping[str, ReadPrompt] = {
    "/v1/chat/completions": chat_prompt,
    "/v1/completions": first_completion_prompt,
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready to be decided: the ask, how it was named, and the body to send.

    `prompts` is how many prompts it holds, and `choices` how many answers a stream must bring to its end;
    `usage_asked` is true where the router asked for the usage of a stream, which the client did not. `turn`
    counts the user's messages in a chat, and is 0 for what is none.
    """

    ask: Ask
    tier: str
    body: bytes
    prompts: int
    choices: int
    usage_asked: bool
    turn: int


class Preparer:
    """Names prompts of every model, by its tokenizer where there is one, else by bytes.

    Where there is a watch over layouts, it is shown what was prepared.
    """

    def __init__(
        self,
        chain: ChainOptions,
        models: Mapping[str, ModelOptions],
        limits: LimitOptions,
        watch: LayoutWatch | None = None,
    ) -> None:
        """Load the tokenizers; FileNotFoundError or ValueError where one cannot be read."""
        # May be replaced while it runs, but for the number of threads.
        self.limits = limits
        self._watch = watch
        self.namers = Namers(
            chain,
            {name: one.tokenizer_directory for name, one in models.items() if one.tokenizer_directory},
        )
        self._threads = ThreadPoolExecutor(limits.tokenizer_threads, thread_name_prefix="tokenize")

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, call: Callable[..., _Made], *arguments: Any) -> _Made:
        """Return what `call` does, which takes too long for the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    async def prepare(self, path: str, raw: bytes, session: str | None, watched: bool = True) -> Prepared:
        """Read a request; ApiError 400 where the body is not one.

        `watched` is false for one that is only asked about: it is no part of the traffic.
        """
        if len(raw) <= _INLINE_BYTES:
            return self._prepare(path, raw, session, watched)
        return await self.in_thread(self._prepare, path, raw, session, watched)

    def _prepare(self, path: str, raw: bytes, session: str | None, watched: bool) -> Prepared:
        body = parse_body(raw)
        try:
            prompt = READERS[path](body)
        except PromptError as error:
            raise ApiError(400, str(error), param=error.field) from error
        chain, tier = self._name(prompt, len(raw))
        if watched and self._watch is not None:
            self._watch.see(body, len(raw), chain.prompt_tokens, self._threads)
        ask = Ask(
            model=prompt.keys.model,
            prompt_tokens=chain.prompt_tokens,
            spread=uuid4().bytes,
            chain=chain,
            session=_session_key(session),
        )
        sent, usage_asked = _ask_for_usage(raw, body) if body.get("stream") is True else (raw, False)
        prompts, n = _prompts(body), body.get("n")
        choices = prompts * (n if isinstance(n, int) and n > 0 else 1)
        turn = sum(message["role"] == "user" for message in prompt.messages or ())
        return Prepared(ask, tier, sent, prompts, choices, usage_asked, turn)

    def _name(self, prompt: CanonicalPrompt, size: int) -> tuple[Chain, str]:
        """Return the chain and the tier. The tier depends on the request alone, so that routers agree."""
        namer = self.namers.by_tokens(prompt.keys.model)
        if namer is not None and prompt.renderable and size <= self.limits.tokenised_bytes:
            try:
                return namer.chain(prompt), "tokens"
            except RenderError:
                # The replica will say what is wrong with it; until then bytes serve.
                pass
        return self.namers.by_bytes.chain(prompt), "bytes"


def _prompts(body: Mapping[str, Any]) -> int:
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1


def _session_key(session: str | None) -> bytes | None:
    """Hash a session id: any text becomes a key, an empty or oversized one none."""
    if not session or len(session) > _LONGEST_SESSION:
        return None
    return xxh3_128_digest(session.encode("utf-8", "surrogateescape"))


def _ask_for_usage(raw: bytes, body: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Return a stream's body with include_usage set, and whether that is the router's doing.

    The hit ratio is counted from usage, which streams carry only when asked. All other bytes stay as sent,
    unless the client sent stream_options of its own.
    """
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") is True:
        return raw, False
    if "stream_options" not in body:
        start = raw.index(b"{") + 1
        return raw[:start] + b'"stream_options":{"include_usage":true},' + raw[start:], True
    if options is None or isinstance(options, dict):
        # The standard library keeps what orjson would round: integers of any size.
        changed = {**json.loads(raw), "stream_options": {**(options or {}), "include_usage": True}}
        return json.dumps(changed, ensure_ascii=False).encode(), True
    # Not what the field may be: the replica shall say so.
    return raw, False
