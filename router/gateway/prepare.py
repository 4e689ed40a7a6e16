"""Prepare: from a request's body to an ask, and to the bytes that go upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from random import getrandbits
from typing import Any, NamedTuple, TypeVar

from xxhash import xxh3_128_digest

from router.chain.namer import Naming
from router.chain.namers import Namers
from router.chain.options import ChainOptions
from router.chain.prompt import CanonicalPrompt, PromptError, chat_prompt, first_completion_prompt
from router.chain.template import RenderError
from router.config import LimitOptions, ModelOptions
from router.gateway.continuation import resumable
from router.observe.layout.watch import LayoutWatch
from router.placement.ask import Ask
from router.wire.body import brackets_in, parse_body
from router.wire.errors import ApiError

# Bodies up to this size, and of so many objects and lists, are read on the event loop: 2 ms at the most, for
# all but absurd ones. Others go to a thread, for a tenth of a millisecond, and so do prompts long to name.
_INLINE_BYTES = 256 * 1024
_INLINE_BRACKETS = 400
_INLINE_SECONDS = 1e-3
_SECONDS_A_BYTE_REWRITTEN = 20e-9
_LONGEST_SESSION = 1024

# What a stream is sent with that has no options of its own; all else stays as the client sent it.
_USAGE = b'"stream_options":{"include_usage":true},'


_Made = TypeVar("_Made")
ReadPrompt = Callable[[Mapping[str, Any]], CanonicalPrompt]

# A request with several prompts goes to one replica as a whole, by its first.
READERS: Mapping[str, ReadPrompt] = {
    "/v1/chat/completions": chat_prompt,
    "/v1/completions": first_completion_prompt,
}


class Prepared(NamedTuple):
    """A request ready to be decided: the ask, how it was named, and what to send.

    To send is `raw[:opening]`, `inserted` (members that the router sets ahead of the others), then the rest
    of `raw`, so that no body is copied. `prompts` is how many prompts it holds, `choices` how many answers a
    stream must bring to its end; `usage_asked` is true where the router asked for the usage of a stream,
    which the client did not. `turn` counts the user's messages in a chat, and is 0 for what is none.
    `streamed` says whether a stream was asked for, and `resumable` whether one that breaks may be continued.
    """

    ask: Ask
    tier: str
    raw: bytes
    inserted: bytes
    opening: int
    prompts: int
    choices: int
    usage_asked: bool
    turn: int
    streamed: bool
    resumable: bool


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
        brackets = brackets_in(raw, _INLINE_BRACKETS)
        if len(raw) > _INLINE_BYTES or brackets == _INLINE_BRACKETS:
            return await self.in_thread(self._prepare, path, raw, brackets, session, watched)
        body, prompt, naming, tier = self._read(path, raw, brackets)
        seconds = naming.seconds
        if "stream_options" in body and _lacks_usage(body):
            seconds += len(raw) * _SECONDS_A_BYTE_REWRITTEN
        if seconds > _INLINE_SECONDS:
            return await self.in_thread(self._finish, path, raw, body, prompt, naming, tier, session, watched)
        return self._finish(path, raw, body, prompt, naming, tier, session, watched)

    def _prepare(self, path: str, raw: bytes, brackets: int, session: str | None, watched: bool) -> Prepared:
        return self._finish(path, raw, *self._read(path, raw, brackets), session, watched)

    def _read(
        self, path: str, raw: bytes, brackets: int
    ) -> tuple[dict[str, Any], CanonicalPrompt, Naming, str]:
        """Return the body, its prompt, that as far as it is named, and the tier."""
        body = parse_body(raw, brackets)
        try:
            prompt = READERS[path](body)
        except PromptError as error:
            raise ApiError(400, str(error), param=error.field) from error
        # The tier depends on the request alone, so that routers agree.
        namer = self.namers.by_tokens(prompt.keys.model)
        if namer is not None and prompt.renderable and len(raw) <= self.limits.tokenised_bytes:
            try:
                return body, prompt, namer.start(prompt), "tokens"
            except RenderError:
                # The replica will say what is wrong with it; until then bytes serve.
                pass
        return body, prompt, self.namers.by_bytes.start(prompt), "bytes"

    def _finish(
        self,
        path: str,
        raw: bytes,
        body: dict[str, Any],
        prompt: CanonicalPrompt,
        naming: Naming,
        tier: str,
        session: str | None,
        watched: bool,
    ) -> Prepared:
        chain = naming.chain()
        if watched and self._watch is not None:
            self._watch.see(body, len(raw), chain.prompt_tokens, self._threads)
        spread = getrandbits(128).to_bytes(16, "little")
        ask = Ask(
            prompt.keys.model, chain.prompt_tokens, spread, chain, _session_key(session) if session else None
        )
        streamed, inserted, usage_asked = body.get("stream") is True, b"", False
        if streamed and "stream_options" not in body:
            inserted, usage_asked = _USAGE, True
        elif streamed and _lacks_usage(body):
            raw, usage_asked = _with_usage(raw, body["stream_options"]), True
        prompts, n = 1 if prompt.messages else _prompts(body), body.get("n")
        choices = prompts * n if isinstance(n, int) and n > 0 else prompts
        turn = [message["role"] for message in prompt.messages].count("user") if prompt.messages else 0
        opening = raw.index(b"{") + 1
        goes_on = streamed and resumable(path, body)
        return Prepared(
            ask, tier, raw, inserted, opening, prompts, choices, usage_asked, turn, streamed, goes_on
        )


def _prompts(body: Mapping[str, Any]) -> int:
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1


def _session_key(session: str | None) -> bytes | None:
    """Hash a session id: any text becomes a key, an empty or oversized one none."""
    if not session or len(session) > _LONGEST_SESSION:
        return None
    return xxh3_128_digest(session.encode("utf-8", "surrogateescape"))


def _lacks_usage(body: Mapping[str, Any]) -> bool:
    """Say whether a stream has options of its own which do not ask for usage.

    The hit ratio is counted from usage, which streams carry only when asked. Where the field is not what it
    may be, the replica shall say so.
    """
    options = body.get("stream_options", False)
    return options is None or (isinstance(options, dict) and options.get("include_usage") is not True)


def _with_usage(raw: bytes, options: Mapping[str, Any] | None) -> bytes:
    """Return the body with include_usage set."""
    # The standard library keeps what orjson would round: integers of any size.
    changed = {**json.loads(raw), "stream_options": {**(options or {}), "include_usage": True}}
    return json.dumps(changed, ensure_ascii=False).encode()
