"""The access log: one line a request, with all that became of it but its text."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from urllib.parse import quote

from router.observe.attribution import Misses
from router.observe.outcome import Outcome

access_log = logging.getLogger("kvring.access")

_LONGEST_MODEL = 128


class AccessLine:
    """An outcome as a log message: `key=value` pairs as text, or fields. Built only when it is written."""

    __slots__ = ("_outcome",)

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def title(self) -> str:
        """Return what every access line says."""
        return "request"

    def fields(self) -> Mapping[str, object]:
        """Return the fields; null where something is not known or does not apply."""
        outcome = self._outcome
        return {
            "request_id": outcome.request_id,
            "trace_id": outcome.trace_id or None,
            "path": outcome.path,
            "model": outcome.model[:_LONGEST_MODEL] or None,
            "turn": outcome.turn or None,
            "status": outcome.status,
            "result": outcome.result,
            "replica": outcome.replica or None,
            "reason": outcome.reason or None,
            "tier": outcome.tier,
            "attempts": outcome.attempts,
            "prompt_tokens": outcome.prompt_tokens,
            "expected_tokens": outcome.expected_tokens,
            "hit_tokens": outcome.hit_tokens,
            "misses": _told(outcome.misses),
            "output_tokens": outcome.output_tokens,
            "streamed": outcome.streamed,
            "wait_seconds": _rounded(outcome.wait_seconds),
            "first_byte_seconds": _rounded(outcome.first_byte_seconds),
            "total_seconds": _rounded(outcome.total_seconds),
            "client_retry": int(outcome.client_retry) if outcome.client_retry.isdigit() else None,
        }

    def __str__(self) -> str:
        return " ".join(f"{name}={_text(value)}" for name, value in self.fields().items())


def _told(misses: Misses | None) -> dict[str, int] | None:
    """Return the causes that some token has."""
    return None if misses is None else {cause.value: tokens for cause, tokens in misses if tokens}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}:{tokens}" for name, tokens in value.items()) or "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}"
    # Spaces end a value and line breaks a line: neither may come from whoever named a model.
    return quote(str(value).replace(" ", "_"), safe="/:@.+,_-")
