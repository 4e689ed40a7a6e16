"""How log lines look: text for people, or one JSON object a line for collectors. Nobody can forge either."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, Protocol, runtime_checkable

import orjson

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@runtime_checkable
class Structured(Protocol):
    """A log message with fields, beside its text form (its `str`)."""

    def title(self) -> str:
        """Return what was said, without the fields."""

    def fields(self) -> Mapping[str, object]:
        """Return the fields, typed as JSON has it."""


def formatter(form: Literal["text", "json"]) -> logging.Formatter:
    """Return the formatter of that name."""
    return JsonFormatter() if form == "json" else TextFormatter()


class TextFormatter(logging.Formatter):
    """Time, level, logger and message. What breaks lines is escaped, but in tracebacks."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line; the record is the caller's own, so only its copy is changed."""
        record.message = _CONTROL.sub(_escaped, record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Time (RFC 3339, UTC), level, logger and message, the fields of a structured one, and any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if isinstance(record.msg, Structured):
            line["message"] = record.msg.title()
            # What every line has is never replaced.
            line.update((name, value) for name, value in record.msg.fields().items() if name not in line)
        else:
            line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _dumped(line)


def _dumped(line: Mapping[str, object]) -> str:
    try:
        dumped = orjson.dumps(line, default=str).decode()
    except (TypeError, ValueError):
        # Half a character, as file names and headers may hold: nothing that is logged may be lost.
        safe = {name: _whole(value) for name, value in line.items()}
        dumped = orjson.dumps(safe, default=str).decode()
    # JSON allows these within text, and some readers take them for the end of a line.
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", dumped)


def _whole(value: object) -> object:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
