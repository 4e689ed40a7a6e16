"""How log lines look: text for people, or one JSON object a line for collectors. Nobody can forge either."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, Protocol, runtime_checkable

import orjson

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_DELETE = "\x7f"


@runtime_checkable
class Structured(Protocol):
    """A log message with fields, beside its text form (its `str`)."""

    def title(self) -> str:
        """Return what was said, without the fields."""

    def fields(self) -> Mapping[str, object]:
        """Return the fields, typed as JSON has it."""


def formatter(form: Literal["text", "json"]) -> TextFormatter | JsonFormatter:
    """Return the formatter of that name."""
    return JsonFormatter() if form == "json" else TextFormatter()


class TextFormatter(logging.Formatter):
    """Time, level, logger and message. What breaks lines is escaped, but in tracebacks."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._clock = _Clock(lambda second: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second)))

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line; the record is the caller's own, so only its copy is changed."""
        record.message = _CONTROL.sub(_escaped, record.message)
        return super().formatMessage(record)

    def line(self, created: float, level: str, logger: str, message: Structured) -> str:
        """Return the line that such a record makes, without one; the message's text must break no line."""
        second, milliseconds = self._clock.read(created)
        return f"{second},{milliseconds:03d} {level} {logger} {message}"


class JsonFormatter(logging.Formatter):
    """Time (RFC 3339, UTC), level, logger and message, the fields of a structured one, and any traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = _Clock(lambda second: datetime.fromtimestamp(second, UTC).isoformat()[:19])

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        if isinstance(record.msg, Structured):
            line = self._told(record.created, record.levelname, record.name, record.msg)
        else:
            line = self._opened(record.created, record.levelname, record.name, record.getMessage())
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _dumped(line)

    def line(self, created: float, level: str, logger: str, message: Structured) -> str:
        """Return the line that such a record makes, without one."""
        return _dumped(self._told(created, level, logger, message))

    def _told(self, created: float, level: str, logger: str, message: Structured) -> dict[str, object]:
        line = self._opened(created, level, logger, message.title())
        # What every line has is never replaced.
        return {**line, **message.fields(), **line}

    def _opened(self, created: float, level: str, logger: str, title: str) -> dict[str, object]:
        second, milliseconds = self._clock.read(created)
        return {
            "time": f"{second}.{milliseconds:03d}Z",
            "level": level.lower(),
            "logger": logger,
            "message": title,
        }


class _Clock:
    """Tells times; the text of a second is made once."""

    def __init__(self, text_of: Callable[[int], str]) -> None:
        self._text_of = text_of
        # Both at once, as threads may log at the turn of a second.
        self._now = (-1, "")

    def read(self, created: float) -> tuple[str, int]:
        """Return the text of a time's second, and its milliseconds."""
        second = int(created)
        now = self._now
        if now[0] != second:
            now = self._now = (second, self._text_of(second))
        return now[1], int((created - second) * 1000)


def _dumped(line: Mapping[str, object]) -> str:
    try:
        dumped = orjson.dumps(line, default=str).decode()
    except (TypeError, ValueError):
        # Half a character, as file names and headers may hold: nothing that is logged may be lost.
        safe = {name: _whole(value) for name, value in line.items()}
        dumped = orjson.dumps(safe, default=str).decode()
    if dumped.isascii() and _DELETE not in dumped:
        # Looking for each of them takes longer than all else.
        return dumped
    # JSON allows these within text, and some readers take them for the end of a line.
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", dumped)


def _whole(value: object) -> object:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
