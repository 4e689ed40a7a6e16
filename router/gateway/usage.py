"""Reads a copy of an answer: its usage, its end, and errors within a stream. Changes nothing."""

from __future__ import annotations

import re
from typing import Any

import orjson

from router.wire.sse import event_data

# A finish reason, usage or an error that is not null.
_TELLING = re.compile(rb'"(?:finish_reason"\s*:\s*"|usage"\s*:\s*\{|error"\s*:\s*[^n\s])')
_GOES_ON = b'"finish_reason":null'
# A usage object as it stands in a longer answer: braces within braces at most once.
_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
# Longer than any prefill.
_LONGEST_MILLISECONDS = 1e8


class AnswerReader:
    """What an answer says about itself. Token counts are None until told."""

    def __init__(self, choices: int = 1) -> None:
        """`choices` is how many answers must end before all is told."""
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self.evicted_tokens: int | None = None
        self.prefill_seconds: float | None = None
        self.done = False
        self.failed = False
        self._choices = choices
        # How events end that were found to hold text alone; at first, as none does.
        self._plain_end = _GOES_ON
        self._ended: set[int] = set()

    @property
    def finished(self) -> bool:
        """Whether the stream came to its end: [DONE], or a finish reason for each choice."""
        return self.done or len(self._ended) >= self._choices

    def read_body(self, body: bytes) -> None:
        """Read a whole JSON answer."""
        try:
            self._read_usage(orjson.loads(body))
        except orjson.JSONDecodeError:
            return

    def read_tail(self, tail: bytes) -> None:
        """Read the usage from the end of a JSON answer too long to be kept."""
        for usage in _USAGE.findall(tail)[-1:]:
            self.read_body(b'{"usage":%b}' % usage)

    def passes(self, data: bytes) -> bool:
        """Say whether this is one whole event that surely tells nothing but text."""
        return data.endswith(self._plain_end) and data.find(b"\n\n") == len(data) - 2

    def read_event(self, event: bytes) -> bool:
        """Read one event; return whether it holds usage and no choices, as include_usage asks for."""
        # Most events are a few tokens of text: told apart by scans in C, without parsing.
        if b"[DONE]" in event and event_data(event) == b"[DONE]":
            self.done = True
            return False
        if not _TELLING.search(event):
            self._note_plain(event)
            return False
        data = event_data(event)
        if data is None:
            return False
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            return False
        if not isinstance(chunk, dict):
            return False
        self.failed = self.failed or chunk.get("error") is not None
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("finish_reason"):
                self._ended.add(_count(choice.get("index")) or 0)
        return self._read_usage(chunk) and choices == []

    def _note_plain(self, event: bytes) -> None:
        """Note how events of text end: the next are told by that from those that end a choice."""
        at = event.rfind(_GOES_ON)
        if at >= 0 and self._choices == 1 and event.endswith(b"\n\n"):
            self._plain_end = event[at:]

    def _read_usage(self, answer: Any) -> bool:
        usage = answer.get("usage") if isinstance(answer, dict) else None
        if not isinstance(usage, dict):
            return False
        self.prompt_tokens = _count(usage.get("prompt_tokens"))
        self.output_tokens = _count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        if not isinstance(details, dict):
            details = {}
        self.cached_tokens = _count(details.get("cached_tokens"))
        self.evicted_tokens = _count(details.get("evicted_tokens"))
        timings = answer.get("timings")
        self.prefill_seconds = _seconds(timings.get("prompt_ms")) if isinstance(timings, dict) else None
        return True


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _seconds(milliseconds: object) -> float | None:
    if isinstance(milliseconds, int | float) and 0 < milliseconds < _LONGEST_MILLISECONDS:
        return milliseconds / 1000
    return None
