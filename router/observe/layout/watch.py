"""Lints the layout of live traffic: a sample of it, in bounded time and memory, and never its text."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any

from pydantic import Field
from xxhash import xxh3_64_intdigest

from router.chain.prompt import PromptError
from router.observe.layout.memory import LayoutMemory
from router.observe.layout.sketch import sketch_of
from router.observe.layout.tally import LayoutReport, LayoutTally
from router.observe.layout.units import read_units
from router.settings import Options

# A request is sampled by any of its last user messages, so that one turn and the next are seen together
# whatever a layout does to the messages in front.
_SAMPLED_BY = 8
_START_CHARACTERS = 2048
# New text of one request that is looked at sentence by sentence: some milliseconds of work.
_PIECED_CHARACTERS = 32 * 1024


class LayoutOptions(Options):
    """What the lint of live layouts may cost."""

    sample_share: float = Field(
        0.02, ge=0, le=1, description="Most of the requests that are looked at: a layout shows in a few."
    )
    memory_bytes: int = Field(
        16 * 1024 * 1024,
        ge=64 * 1024,
        le=4 * 1024**3,
        description="For hashes of prompts seen lately: about a thousand conversations.",
    )
    prompts: int = Field(
        4096, ge=2, le=1_000_000, description="Remembered at most; a conversation counts once."
    )
    body_bytes: int = Field(
        256 * 1024,
        ge=1024,
        le=64 * 1024 * 1024,
        description="Larger ones are left out and counted: the first look at so many messages takes 50 ms.",
    )


class LayoutWatch:
    """Sees requests as they pass. Thread-safe; `see` never raises for what a client sent."""

    def __init__(self, options: LayoutOptions) -> None:
        self._options = options
        # The chance of one message, so that a request with the most of them comes to the share.
        self._chance = 1 - (1 - options.sample_share) ** (1 / _SAMPLED_BY)
        self._memory = LayoutMemory(options.memory_bytes, options.prompts)
        self._tally = LayoutTally()
        self._lock = Lock()
        self._skipped = 0

    @property
    def skipped(self) -> int:
        """Sampled requests that were left out: too large, without text, or while another was looked at."""
        return self._skipped

    @property
    def held_bytes(self) -> int:
        """About what is held in memory."""
        return self._memory.held_bytes

    def see(self, body: Mapping[str, Any], size_bytes: int, prompt_tokens: int, wait: bool = True) -> bool:
        """Look at a request's parsed body of `size_bytes`, if it is in the sample; return whether it was.

        `prompt_tokens` is its length as the chain counts it. With `wait` false, for a thread that must not
        stand still, the request is left out while another is looked at.
        """
        if not self._chance or (weight := self._weight(body)) is None:
            return False
        if size_bytes > self._options.body_bytes:
            self._skipped += 1
            return False
        try:
            units = read_units(body)
        except PromptError:
            self._skipped += 1
            return False
        # One at a time: two at once would not find each other's prompts, and the work holds the GIL anyway.
        if not self._lock.acquire(blocking=wait):
            self._skipped += 1
            return False
        try:
            sketch = sketch_of(units, self._memory.part, pieced_characters=_PIECED_CHARACTERS)
            self._tally.add(self._memory.see(sketch), sketch.size, prompt_tokens, weight)
        finally:
            self._lock.release()
        return True

    def report(self) -> LayoutReport:
        """Return the sums since the start. Requests and tokens are estimates for all traffic."""
        with self._lock:
            return self._tally.report()

    def _weight(self, body: Mapping[str, Any]) -> float | None:
        """Return how many requests this one stands for; None where it is not in the sample."""
        texts = _sampled_by(body)
        bound = self._chance * 2**64
        if not any(xxh3_64_intdigest(text) < bound for text in texts):
            return None
        return float(1 / (1 - (1 - self._chance) ** len(texts)))


def _sampled_by(body: Mapping[str, Any]) -> set[bytes]:
    """Return the starts of the last user messages, or of the prompt: a few bytes of a body of any size."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return {_start(body.get("prompt"))}
    texts: set[bytes] = set()
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            texts.add(_start(message.get("content")))
        if len(texts) == _SAMPLED_BY:
            break
    return texts or {b""}


def _start(content: object) -> bytes:
    if isinstance(content, list):
        content = repr([part.get("text") if isinstance(part, dict) else part for part in content[:16]])
    return str(content)[:_START_CHARACTERS].encode("utf-8", "surrogatepass")
