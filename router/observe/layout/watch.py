"""Lints the layout of live traffic: a sample of it, in bounded time and memory, and never its text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from threading import Lock
from time import monotonic
from typing import Any

from xxhash import xxh3_64_intdigest

from router.chain.prompt import PromptError
from router.config import LayoutOptions
from router.observe.layout.memory import LayoutMemory
from router.observe.layout.report import LayoutReport
from router.observe.layout.sketch import sketch_of
from router.observe.layout.tally import LayoutTally
from router.observe.layout.units import read_units

log = logging.getLogger("kvring.layout")

# A request is sampled by any of its last user messages, so that one turn and the next are seen together
# whatever a layout does to the messages in front.
_SAMPLED_BY = 8
# Of messages that repeat, so many at most are read to find as many different ones.
_READ_FOR_SAMPLE = 64
_START_CHARACTERS = 2048
_START_PARTS = 16
# New text of one request that is looked at sentence by sentence: some milliseconds of work.
_PIECED_CHARACTERS = 32 * 1024


class LayoutWatch:
    """Sees requests as they pass. Thread-safe; nothing that a client sends makes it raise.

    One request is looked at at a time: two at once would not find each other's prompts, and the work holds
    the GIL anyway. Looks take no more of a core than their share of requests: after one comes a rest, and
    the next one stands for those left out meanwhile as well.
    """

    def __init__(self, options: LayoutOptions, clock: Callable[[], float] = monotonic) -> None:
        self._options = options
        self._clock = clock
        self._rests_until = 0.0
        self._left_out = 0.0
        # The chance of one message, so that a request with the most of them comes to the share.
        self._chance = 1 - (1 - options.sample_share) ** (1 / _SAMPLED_BY)
        self._bound = self._chance * 2**64
        self._memory = LayoutMemory(options.memory_bytes, options.prompts)
        self._tally = LayoutTally()
        self._skipped = 0
        # Held while a request is looked at, or waits for that.
        self._looking = Lock()
        # Held for moments only, so that reports are never kept waiting by a look.
        self._counting = Lock()

    @property
    def skipped(self) -> int:
        """Sampled requests that were left out: too large, without text, in a look, or in the rest after."""
        return self._skipped

    @property
    def held_bytes(self) -> int:
        """About what is held in memory."""
        return self._memory.held_bytes

    def see(self, body: Mapping[str, Any], size_bytes: int, prompt_tokens: int, threads: Executor) -> bool:
        """Let one of `threads` look at a request, if it is in the sample; return whether one will.

        `body` is parsed from `size_bytes`; `prompt_tokens` is its length as the chain counts it. Here this
        takes microseconds. A request is left out while another waits or is looked at, so that never more
        than one is kept for that.
        """
        weight = self._weight(body)
        if weight is None:
            return False
        if self._clock() < self._rests_until:
            self._skip(weight)
            return False
        if size_bytes > self._options.body_bytes or not self._looking.acquire(blocking=False):
            self._skip()
            return False
        try:
            threads.submit(self._look, body, prompt_tokens, weight)
        except RuntimeError:
            # The threads are closed: the router ends.
            self._looking.release()
            return False
        return True

    def report(self) -> LayoutReport:
        """Return the sums since the start. Requests and tokens are estimates for all traffic."""
        with self._counting:
            return self._tally.report()

    def _look(self, body: Mapping[str, Any], prompt_tokens: int, weight: float) -> None:
        """Look at a request, with `_looking` held."""
        started = self._clock()
        try:
            sketch = sketch_of(read_units(body), self._memory.part, pieced_characters=_PIECED_CHARACTERS)
            found = self._memory.see(sketch)
            with self._counting:
                weight, self._left_out = weight + self._left_out, 0.0
                self._tally.add(found, sketch.size, prompt_tokens, weight)
        except PromptError:
            self._skip()
        except Exception as error:
            # Nobody waits for what comes of it. Its name alone is told: a message may hold text.
            log.warning("a request's layout was not looked at: %s", type(error).__name__)
            self._skip()
        finally:
            now = self._clock()
            self._rests_until = now + (now - started) * (1 / self._options.sample_share - 1)
            self._looking.release()

    def _skip(self, weight: float = 0.0) -> None:
        with self._counting:
            self._skipped += 1
            self._left_out += weight

    def _weight(self, body: Mapping[str, Any]) -> float | None:
        """Return how many requests this one stands for; None where it is not in the sample."""
        marks = _sampled_by(body)
        if min(marks) >= self._bound:
            return None
        return float(1 / (1 - (1 - self._chance) ** len(marks)))


def _sampled_by(body: Mapping[str, Any]) -> set[int]:
    """Return hashes of the starts of the last user messages, or of the prompt: a few bytes of any body."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return {xxh3_64_intdigest(_start(body.get("prompt")).encode("utf-8", "surrogatepass"))}
    marks: set[int] = set()
    left = _READ_FOR_SAMPLE
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            text = content[:_START_CHARACTERS] if isinstance(content, str) else _start(content)
            marks.add(xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")))
            left -= 1
            if len(marks) == _SAMPLED_BY or not left:
                break
    return marks or {xxh3_64_intdigest(b"")}


def _start(content: object) -> str:
    """Return the start of the first parts taken together, or of a text; of anything else nothing."""
    text = ""
    for part in content[:_START_PARTS] if isinstance(content, list) else [content]:
        inner = part.get("text") if isinstance(part, dict) else part
        if isinstance(inner, str):
            text += inner[: _START_CHARACTERS - len(text)]
        elif isinstance(inner, int):
            # A token id.
            text += f" {inner}"[: _START_CHARACTERS - len(text)]
    return text
