"""Reads a copy of an answer: its usage, its end, and errors within a stream. Changes nothing."""

from __future__ import annotations

from typing import Any

import orjson

from router.wire.sse import event_data


class AnswerReader:
    """What an answer says about itself. Token counts are None until told."""

    def __init__(self) -> None:
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.finished = False
        self.failed = False

    def read_body(self, body: bytes) -> None:
        """Read a whole JSON answer."""
        try:
            self._read_usage(orjson.loads(body))
        except orjson.JSONDecodeError:
            return

    def read_event(self, event: bytes) -> bool:
        """Read one event; return whether it holds usage and no choices, as include_usage asks for."""
        # Most events are a few tokens of text: told apart by scans in C, without parsing.
        if b"[DONE]" in event and event_data(event) == b"[DONE]":
            self.finished = True
            return False
        if b'"usage"' not in event and b'"error"' not in event and b'"finish_reason"' not in event:
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
        if isinstance(choices, list) and any(
            isinstance(choice, dict) and choice.get("finish_reason") for choice in choices
        ):
            self.finished = True
        return self._read_usage(chunk) and choices == []

    def _read_usage(self, answer: Any) -> bool:
        usage = answer.get("usage") if isinstance(answer, dict) else None
        if not isinstance(usage, dict):
            return False
        self.prompt_tokens = _count(usage.get("prompt_tokens"))
        details = usage.get("prompt_tokens_details")
        self.cached_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
        return True


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
