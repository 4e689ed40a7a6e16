"""Access lines: text and JSON as the fields have it, past `logging` or through it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.observe.access import AccessLine, AccessLog
from router.observe.attribution import Cause, Misses
from router.observe.log_format import formatter
from router.observe.log_lines import LineHandler
from router.observe.outcome import Outcome

_Form = Literal["text", "json"]
# Letters of all kinds, those that break lines and halves of characters.
_letters = st.one_of(st.characters(), st.sampled_from(' \ud83d\n\r\x00\x7f\x85\u2028"\\=%~/:@.+,_-'))
_text = st.lists(_letters, max_size=150).map("".join)
_tokens = st.integers(0, 10**7)
_seconds = st.floats(0, 1e5)
_outcomes = st.builds(
    Outcome,
    request_id=_text,
    path=st.sampled_from(["/v1/chat/completions", "/v1/messages"]),
    arrived_at=st.just(0.0),
    model=_text,
    turn=st.integers(0, 50),
    trace_id=st.sampled_from(["", "ab" * 16]),
    tier=st.sampled_from(["none", "bytes"]),
    replica=_text,
    reason=_text,
    status=st.integers(0, 599),
    attempts=st.integers(0, 3),
    prompt_tokens=_tokens,
    expected_tokens=_tokens,
    hit_tokens=st.none() | _tokens,
    output_tokens=st.none() | _tokens,
    misses=st.none() | st.builds(Misses, **{cause.value: st.sampled_from([0, 0, 7]) for cause in Cause}),
    streamed=st.booleans(),
    wait_seconds=st.none() | _seconds,
    first_byte_seconds=st.none() | _seconds,
    total_seconds=_seconds,
    client_retry=st.sampled_from(["0", "12", "-", "²"]),
)


def as_text(value: object) -> str:
    """A field as text: slow, and plain to see."""
    if isinstance(value, dict):
        return ",".join(f"{name}:{tokens}" for name, tokens in value.items()) or "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}"
    return quote(str(value).replace(" ", "_"), safe="/:@.+,_-", errors="surrogatepass")


@settings(max_examples=200, deadline=None)
@given(outcome=_outcomes)
def test_the_text_is_that_of_the_fields(outcome: Outcome) -> None:
    line = AccessLine(outcome)
    assert str(line) == " ".join(f"{name}={as_text(value)}" for name, value in line.fields().items())
    assert str(line).isascii()
    assert not re.search(r"\s(?!\w+=)", str(line))


@settings(max_examples=100, deadline=None)
@given(outcome=_outcomes, form=st.sampled_from(["text", "json"]))
def test_the_line_is_that_of_a_record(outcome: Outcome, form: _Form) -> None:
    told, line = formatter(form), AccessLine(outcome)
    record = logging.LogRecord("kvring.access", logging.INFO, "", 0, line, None, None)
    expected = told.format(record)
    assert told.line(record.created, "INFO", "kvring.access", line) == expected
    assert "\n" not in expected
    if form == "json":
        assert json.loads(expected)["status"] == outcome.status


@settings(max_examples=100, deadline=None)
@given(st.builds(Misses, **{cause.value: st.sampled_from([0, 0, 7]) for cause in Cause}))
def test_all_causes_are_told(misses: Misses) -> None:
    assert list(misses.to_json().items()) == [(cause.value, tokens) for cause, tokens in misses if tokens]


class _File:
    """The log of a process in a file, which is all that the root logger has."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w")
        self.handler = LineHandler(self._file)
        self.handler.setFormatter(formatter("text"))
        self.log = AccessLog()

    def lines(self) -> list[str]:
        self.handler.flush()
        return self._path.read_text().splitlines()

    def close(self) -> None:
        self.handler.flush()
        self._file.close()


@contextmanager
def log_in(path: Path) -> Iterator[_File]:
    # Not as a fixture: the test run gives the root logger handlers of its own when a test begins.
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    file = _File(path)
    root.handlers[:] = [file.handler]
    root.setLevel(logging.INFO)
    try:
        yield file
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        file.close()


def outcome(request_id: str) -> Outcome:
    return Outcome(request_id, "/v1/completions", 0.0, status=200)


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def names(file: _File) -> list[str]:
    return [line.split()[4].removeprefix("request_id=") for line in file.lines()]


def test_lines_are_in_order_with_all_that_is_logged(tmp_path: Path) -> None:
    with log_in(tmp_path / "log") as file:
        for number in range(50):
            file.log.enter(outcome(f"r{number}"))
            logging.getLogger("kvring").info("n%d", number)
        assert names(file) == [name for number in range(50) for name in (f"r{number}", f"n{number}")]
        pattern = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO kvring(.access)? \S+.*"
        assert all(re.fullmatch(pattern, line) for line in file.lines())


def test_no_record_is_made_where_nobody_else_listens(tmp_path: Path) -> None:
    made: list[logging.LogRecord] = []
    factory = logging.getLogRecordFactory()

    def make(*given: object) -> logging.LogRecord:
        made.append(factory(*given))
        return made[-1]

    logging.setLogRecordFactory(make)
    try:
        with log_in(tmp_path / "log") as file:
            file.log.enter(outcome("r1"))
            assert names(file) == ["r1"]
            assert made == []
    finally:
        logging.setLogRecordFactory(factory)


@pytest.mark.parametrize("name", ["kvring.access", "kvring", ""])
def test_who_listens_hears_records_as_ever(tmp_path: Path, name: str) -> None:
    with log_in(tmp_path / "log") as file:
        records, logger = _Records(), logging.getLogger(name)
        logger.addHandler(records)
        try:
            file.log.enter(outcome("r1"))
        finally:
            logger.removeHandler(records)
        file.log.enter(outcome("r2"))
        (record,) = records.records
        assert isinstance(record.msg, AccessLine)
        assert names(file) == ["r1", "r2"]


def test_filters_and_levels_hold(tmp_path: Path) -> None:
    def refuses(record: logging.LogRecord) -> bool:
        return "r2" not in record.getMessage()

    access, root = logging.getLogger("kvring.access"), logging.getLogger()
    with log_in(tmp_path / "log") as file:
        for filtered in (access, file.handler):
            filtered.addFilter(refuses)
            try:
                for name in ("r1", "r2"):
                    file.log.enter(outcome(name))
            finally:
                filtered.removeFilter(refuses)
        assert names(file) == ["r1", "r1"]
        for quiet, before in ((access, logging.NOTSET), (root, logging.INFO)):
            quiet.setLevel(logging.WARNING)
            file.log.enter(outcome("r3"))
            quiet.setLevel(before)
        file.handler.setLevel(logging.WARNING)
        file.log.enter(outcome("r3"))
        file.handler.setLevel(logging.NOTSET)
        access.propagate = False
        file.log.enter(outcome("r4"))
        access.propagate = True
        assert len(file.lines()) == 2
