"""Request logs: the bodies that clients sent, one JSON object a line, in any of three forms.

    {"model": ..., "messages": [...]}                                   a body alone
    {"timestamp": ..., "path": "/v1/...", "body": {...}}                a body with its time and address
    {"custom_id": ..., "method": "POST", "url": "/v1/...", "body": {...}}   the OpenAI batch form

A timestamp is a number of seconds, or of milliseconds if above 10^11, or text as in ISO 8601 (UTC where it
names no zone).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loadgen.traces.lines import MAX_LINE_BYTES, read_lines
from loadgen.traces.trace import TraceError
from router.wire.body import parse_body
from router.wire.errors import ApiError

MAX_BAD_LINES = 100
MAX_REQUESTS = 2_000_000
_NAMED_BAD_LINES = 10
_MILLISECONDS_FROM = 1e11

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
MESSAGES_PATH = "/v1/messages"
RESPONSES_PATH = "/v1/responses"


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request of a log.

    `arrival_seconds` counts from the log's own origin (often 1970), None where the log tells no time.
    `path` is that of the API it was sent to, guessed from the body's fields where the log does not say.
    """

    arrival_seconds: float | None
    path: str
    body: dict[str, Any]


@dataclass(slots=True)
class BadLines:
    """Counts the lines that could not be used, and keeps what was wrong with the first few.

    More than `limit` of them are an error: such a file is no request log.
    """

    limit: int = MAX_BAD_LINES
    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, place: str, reason: str) -> None:
        """Count one line; TraceError if that was one too many."""
        self.count += 1
        if len(self.first) < _NAMED_BAD_LINES:
            self.first.append(f"{place}: {reason}")
        if self.count > self.limit:
            raise TraceError(f"more than {self.limit} lines cannot be used, the first: {self.first[0]}")


def read_requests(
    path: Path,
    bad: BadLines | None = None,
    max_requests: int = MAX_REQUESTS,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[LoggedRequest]:
    """Yield the requests of a log, plain, gzipped or xz-compressed, in the order of its lines.

    Lines that are no requests are counted in `bad` and left out. TraceError if there are more of them than
    its limit, if no line can be used, or if the file cannot be read or has more than `max_requests`.
    """
    bad = bad if bad is not None else BadLines()
    good = 0
    for number, line in read_lines(path, max_line_bytes):
        try:
            request = _logged(parse_body(line))
        except ApiError as error:
            bad.add(f"{path}:{number}", error.message.replace("the body", "the line"))
            continue
        except TraceError as error:
            bad.add(f"{path}:{number}", str(error))
            continue
        if good >= max_requests:
            raise TraceError(f"{path} has more than {max_requests:,} requests")
        good += 1
        yield request
    if not good:
        reason = f", the first bad line: {bad.first[0]}" if bad.first else ""
        raise TraceError(f"{path} has no requests{reason}")


def _logged(record: dict[str, Any]) -> LoggedRequest:
    if "body" not in record:
        return LoggedRequest(None, _path(None, record), record)
    body = record["body"]
    if not isinstance(body, dict):
        raise TraceError("'body' must be an object")
    address = record.get("path", record.get("url"))
    if address is not None and not isinstance(address, str):
        raise TraceError("'path' and 'url' must be text")
    return LoggedRequest(_seconds(record.get("timestamp")), _path(address, body), body)


def _path(address: str | None, body: Mapping[str, Any]) -> str:
    if address:
        return urlsplit(address).path
    if "messages" in body:
        # Only Anthropic's form has the system prompt beside the messages.
        return MESSAGES_PATH if "system" in body else CHAT_PATH
    if "prompt" in body:
        return COMPLETION_PATH
    if "input" in body:
        return RESPONSES_PATH
    raise TraceError("neither 'messages' nor 'prompt' nor 'input' is there: this is no request")


def _seconds(timestamp: object) -> float | None:
    if timestamp is None:
        return None
    if isinstance(timestamp, int | float) and not isinstance(timestamp, bool) and isfinite(timestamp):
        return timestamp / 1000 if timestamp > _MILLISECONDS_FROM else float(timestamp)
    if isinstance(timestamp, str):
        try:
            moment = datetime.fromisoformat(timestamp)
        except ValueError:
            pass
        else:
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    raise TraceError("'timestamp' must be a number or a time as in ISO 8601")
