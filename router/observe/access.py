"""The access log: one line a request, with all that became of it but its text."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from time import time
from urllib.parse import quote

from router.observe.log_format import JsonFormatter, TextFormatter
from router.observe.log_lines import LineHandler
from router.observe.outcome import Outcome

access_log = logging.getLogger("kvring.access")
_above, _root = logging.getLogger("kvring"), logging.getLogger()

_FORMATTERS = (TextFormatter, JsonFormatter)
_LONGEST_MODEL = 128
_PLAIN = re.compile(r"[A-Za-z0-9._~/:@+,-]+")


class AccessLog:
    """Writes access lines to the log of this process."""

    def enter(self, outcome: Outcome) -> None:
        """Write an outcome's line.

        Through `logging` that costs several times as much as all else that is noted of a request. So the line
        goes right to where the log does, unless somebody has other plans with it: then `logging` decides.
        """
        if not access_log.isEnabledFor(logging.INFO):
            return
        line, handler = AccessLine(outcome), _only_handler()
        if handler is not None and isinstance(handler.formatter, _FORMATTERS):
            handler.put(handler.formatter.line(time(), "INFO", "kvring.access", line))
        else:
            access_log.info(line)


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
            "misses": None if outcome.misses is None else outcome.misses.to_json(),
            "output_tokens": outcome.output_tokens,
            "streamed": outcome.streamed,
            "wait_seconds": _rounded(outcome.wait_seconds),
            "first_byte_seconds": _rounded(outcome.first_byte_seconds),
            "total_seconds": _rounded(outcome.total_seconds),
            "client_retry": int(outcome.client_retry) if outcome.client_retry.isdecimal() else None,
        }

    def __str__(self) -> str:
        """Return the fields as text; a value holds no space and breaks no line."""
        outcome = self._outcome
        hit, output, retry = outcome.hit_tokens, outcome.output_tokens, outcome.client_retry
        wait, first = outcome.wait_seconds, outcome.first_byte_seconds
        misses = outcome.misses.to_json().items() if outcome.misses else ()
        return (
            f"request_id={_quoted(outcome.request_id)} trace_id={_quoted(outcome.trace_id or '-')}"
            f"{_asked(outcome.path, outcome.model[:_LONGEST_MODEL], outcome.turn)} status={outcome.status}"
            f"{_answered(outcome.result, outcome.replica, outcome.reason, outcome.tier, outcome.attempts)}"
            f" prompt_tokens={outcome.prompt_tokens}"
            f" expected_tokens={outcome.expected_tokens} hit_tokens={'-' if hit is None else hit}"
            f" misses={','.join([f'{cause}:{tokens}' for cause, tokens in misses]) or '-'}"
            f" output_tokens={'-' if output is None else output}"
            f" streamed={'true' if outcome.streamed else 'false'}"
            f" wait_seconds={'-' if wait is None else f'{wait:.4f}'}"
            f" first_byte_seconds={'-' if first is None else f'{first:.4f}'}"
            f" total_seconds={outcome.total_seconds:.4f}"
            f" client_retry={int(retry) if retry.isdecimal() else '-'}"
        )


def _only_handler() -> LineHandler | None:
    """Return the handler of access lines where there is none but ours."""
    if len(_root.handlers) != 1 or access_log.handlers or _above.handlers:
        return None
    if access_log.filters or not (access_log.propagate and _above.propagate):
        return None
    (handler,) = _root.handlers
    if isinstance(handler, LineHandler) and handler.level <= logging.INFO and not handler.filters:
        return handler
    return None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _quoted(text: str) -> str:
    """Return a value as text; spaces end a value and line breaks a line: neither may come from a client."""
    if _PLAIN.fullmatch(text):
        return text
    return quote(text.replace(" ", "_"), safe="/:@.+,_-", errors="surrogatepass") or "-"


# Many requests have these alike. What clients name is short: paths are the API's, models are cut.
@lru_cache(2048)
def _asked(path: str, model: str, turn: int) -> str:
    return f" path={_quoted(path)} model={_quoted(model)} turn={turn or '-'}"


@lru_cache(2048)
def _answered(result: str, replica: str, reason: str, tier: str, attempts: int) -> str:
    return (
        f" result={_quoted(result)} replica={_quoted(replica)} reason={_quoted(reason)}"
        f" tier={_quoted(tier)} attempts={attempts}"
    )
