"""Request logs: their three forms, their times, and how much that is bad is borne."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.traces.request_log import BadLines, LoggedRequest, read_requests
from loadgen.traces.trace import TraceError

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def write(path: Path, *lines: object) -> Path:
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else orjson.dumps(line) for line in lines))
    return path


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (CHAT, "/v1/chat/completions"),
        ({**CHAT, "system": "be short"}, "/v1/messages"),
        ({"model": "m", "prompt": "hi"}, "/v1/completions"),
        ({"model": "m", "input": "hi"}, "/v1/responses"),
    ],
)
def test_a_bare_body_tells_its_path(tmp_path: Path, body: dict[str, Any], path: str) -> None:
    assert list(read_requests(write(tmp_path / "log", body))) == [LoggedRequest(None, path, body)]


def test_batch_files_and_wrapped_bodies_are_read(tmp_path: Path) -> None:
    batch = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}
    wrapped = {"timestamp": 12.5, "path": "http://host/v1/messages?beta=true", "body": CHAT}
    requests = list(read_requests(write(tmp_path / "log", batch, b"", wrapped)))
    assert requests == [
        LoggedRequest(None, "/v1/chat/completions", CHAT),
        LoggedRequest(12.5, "/v1/messages", CHAT),
    ]


@pytest.mark.parametrize(
    ("timestamp", "seconds"),
    [
        (1_700_000_000, 1_700_000_000.0),
        (1_700_000_000_500, 1_700_000_000.5),
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14 22:13:20.5", 1_700_000_000.5),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000.0),
        (None, None),
    ],
)
def test_times_are_seconds_milliseconds_or_text(
    tmp_path: Path, timestamp: object, seconds: float | None
) -> None:
    (request,) = read_requests(write(tmp_path / "log", {"timestamp": timestamp, "body": CHAT}))
    assert request.arrival_seconds == seconds


def test_a_log_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(orjson.dumps(CHAT)))
    assert len(list(read_requests(path))) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "not valid JSON"),
        ([1], "must be a JSON object"),
        ({"hello": 1}, "neither 'messages' nor 'prompt'"),
        ({"body": 1}, "'body' must be an object"),
        ({"body": CHAT, "timestamp": "yesterday"}, "'timestamp'"),
        ({"body": CHAT, "timestamp": True}, "'timestamp'"),
        ({"body": CHAT, "path": 3}, "'path' and 'url'"),
        (b'{"messages":' + b"[" * 200 + b"]" * 200 + b"}", "nested deeper"),
    ],
)
def test_bad_lines_are_counted_and_told(tmp_path: Path, line: object, reason: str) -> None:
    bad = BadLines()
    assert len(list(read_requests(write(tmp_path / "log", CHAT, line, CHAT), bad))) == 2
    assert bad.count == 1
    assert bad.first[0].startswith(f"{tmp_path / 'log'}:2: ")
    assert reason in bad.first[0]


def test_too_many_bad_lines_end_the_reading(tmp_path: Path) -> None:
    path = write(tmp_path / "log", CHAT, *[b"x"] * 5)
    with pytest.raises(TraceError, match=r"more than 3 lines cannot be used, the first: .*log:2"):
        list(read_requests(path, BadLines(limit=3)))
    bad = BadLines(limit=5)
    assert len(list(read_requests(path, bad))) == 1
    assert bad.count == 5


def test_a_log_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"has no requests$"):
        list(read_requests(write(tmp_path / "log", b"")))
    with pytest.raises(TraceError, match=r"has no requests, the first bad line: .*:1: "):
        list(read_requests(write(tmp_path / "log", b"x")))


def test_requests_and_lines_are_bounded(tmp_path: Path) -> None:
    path = write(tmp_path / "log", CHAT, CHAT, CHAT)
    with pytest.raises(TraceError, match="more than 2 requests"):
        list(read_requests(path, max_requests=2))
    with pytest.raises(TraceError, match=":1: the line is longer"):
        list(read_requests(path, max_line_bytes=10))
