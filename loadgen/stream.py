"""Reads a stream of chat or completion chunks: text, when each token came, usage, and whether it is whole."""

from __future__ import annotations

from typing import Any

import orjson

from router.wire.sse import EventCutter, event_data

MAX_TOKENS = 200_000
"""Deltas of one answer; a server that never ends its stream must not fill the client's memory."""


class StreamFault(Exception):
    """The answer is not whole. `kind` is a short word to count by."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class StreamReader:
    """Takes the bytes of one stream as they come. Times are whatever clock the caller reads."""

    def __init__(self) -> None:
        self.token_times: list[float] = []
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.answer_tokens: int | None = None
        self.done_at: float | None = None
        self._cutter = EventCutter()
        self._texts: list[str] = []
        self._finished = False

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._texts)

    def feed(self, chunk: bytes, now: float) -> None:
        """Take bytes that came at `now`; StreamFault for an error event or what is not a chunk."""
        for event in self._cutter.feed(chunk):
            self._event(event, now)

    def finish(self, now: float) -> None:
        """Say that the stream ended at `now`; StreamFault unless it was whole."""
        # A last blank line made of CRs alone is told from half a CRLF only now.
        if (rest := self._cutter.rest()).endswith((b"\r", b"\n")):
            self._event(rest, now)
        if self.done_at is None or not self._finished:
            lacking = "without [DONE]" if self.done_at is None else "without a finish_reason"
            raise StreamFault("truncated", f"the stream ended {lacking}")

    def _event(self, event: bytes, now: float) -> None:
        data = event_data(event)
        if self.done_at is not None or data is None:
            return
        if data == b"[DONE]":
            self.done_at = now
        else:
            self._take(data, now)

    def _take(self, data: bytes, now: float) -> None:
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise StreamFault("malformed", f"an event is not JSON: {data[:200]!r}") from error
        if not isinstance(chunk, dict):
            raise StreamFault("malformed", f"an event is not an object: {data[:200]!r}")
        if chunk.get("error") is not None:
            raise StreamFault("in_band", data.decode(errors="replace"))
        try:
            self._usage(chunk.get("usage"))
            for choice in chunk.get("choices") or ():
                self._choice(choice, now)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise StreamFault("malformed", f"an event is not a chunk: {data[:200]!r}") from error

    def _choice(self, choice: dict[str, Any], now: float) -> None:
        if choice.get("finish_reason") is not None:
            self._finished = True
        completion = "text" in choice
        delta = {"content": choice["text"]} if completion else choice.get("delta") or {}
        content = delta.get("content")
        if content:
            self._texts.append(content + "")
        # A completion's token may have no text of its own: the end is the latest moment it can have come.
        untold = completion and self._finished and not self.token_times
        # Thoughts and tool calls are tokens too; the first delta of most servers only names the role.
        if untold or any(value for name, value in delta.items() if name != "role"):
            if len(self.token_times) >= MAX_TOKENS:
                raise StreamFault("endless", f"more than {MAX_TOKENS} tokens in one answer")
            self.token_times.append(now)

    def _usage(self, usage: dict[str, Any] | None) -> None:
        if usage is None:
            return
        self.prompt_tokens = int(usage["prompt_tokens"])
        self.answer_tokens = int(usage["completion_tokens"])
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        self.cached_tokens = None if cached is None else int(cached)
