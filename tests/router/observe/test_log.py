"""Log lines: typed fields for collectors, text for people; and a client cannot write a line of its own."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import pytest

from router.observe.access import AccessLine
from router.observe.attribution import Misses
from router.observe.log_format import formatter
from router.observe.outcome import Outcome

NASTY = 'm\n2026 INFO kvring.access status=200\r\x00\x1b[2J\u2028 "x"=1 ü'


class Log:
    """A logger of its own, and what it wrote."""

    def __init__(self, form: Literal["text", "json"]) -> None:
        self._stream = io.StringIO()
        self._handler = logging.StreamHandler(self._stream)
        self._handler.setFormatter(formatter(form))
        # Of no hierarchy: what it is given is not for the report of the test run.
        self.logger = logging.Logger(f"test.{form}")
        self.logger.setLevel("DEBUG")
        self.logger.addHandler(self._handler)

    def close(self) -> None:
        self.logger.removeHandler(self._handler)

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def text() -> Iterator[Log]:
    log = Log("text")
    yield log
    log.close()


@pytest.fixture
def as_json() -> Iterator[Log]:
    log = Log("json")
    yield log
    log.close()


def ended(**fields: object) -> Outcome:
    outcome = Outcome("id-1", "/v1/chat/completions", 0.0, model="m", turn=3, replica="r0", status=200)
    outcome.reason, outcome.prompt_tokens, outcome.hit_tokens = "near tie", 100, 64
    outcome.misses = Misses(partial_block=4, cold=32)
    outcome.first_byte_seconds, outcome.total_seconds = 0.123456, 2.0
    for name, value in fields.items():
        setattr(outcome, name, value)
    return outcome


def test_an_access_line_as_json_is_typed(as_json: Log) -> None:
    as_json.logger.info(AccessLine(ended(trace_id="ab" * 16, output_tokens=7)))
    (line,) = as_json.objects
    assert datetime.fromisoformat(line["time"]).tzinfo is not None
    assert (line["level"], line["logger"], line["message"]) == ("info", "test.json", "request")
    assert line["misses"] == {"partial_block": 4, "cold": 32}
    assert line["status"] == 200
    assert line["first_byte_seconds"] == 0.1235
    assert line["request_id"] == "id-1"
    assert line["trace_id"] == "ab" * 16
    assert line["turn"] == 3
    assert line["hit_tokens"] == 64
    assert line["output_tokens"] == 7
    assert line["wait_seconds"] is None
    assert line["streamed"] is False


def test_an_access_line_as_text_splits_at_spaces(text: Log) -> None:
    text.logger.info(AccessLine(ended()))
    (line,) = text.lines
    pairs = dict(pair.split("=", 1) for pair in line.split(" ")[4:])
    assert pairs["misses"] == "partial_block:4,cold:32"
    assert pairs["reason"] == "near_tie"
    assert pairs["first_byte_seconds"] == "0.1235"
    assert pairs["output_tokens"] == "-"
    assert set(pairs) == set(AccessLine(ended()).fields())


def test_a_model_cannot_write_a_line_or_a_field(text: Log, as_json: Log) -> None:
    for log in (text, as_json):
        log.logger.info(AccessLine(ended(model=NASTY, replica="")))
    (line,) = text.lines
    pairs = [pair.split("=", 1) for pair in line.split(" ")[4:]]
    assert [name for name, _ in pairs].count("status") == 1
    assert line.isascii()
    (told,) = as_json.objects
    assert told["model"] == NASTY


def test_a_long_model_is_cut(text: Log, as_json: Log) -> None:
    for log in (text, as_json):
        log.logger.info(AccessLine(ended(model="ü" * 100_000)))
    assert len(text.lines[0]) < 2000
    assert len(as_json.lines[0]) < 2000


def test_other_messages_cannot_break_lines_either(text: Log, as_json: Log) -> None:
    for log in (text, as_json):
        log.logger.warning("replica %s said %s", "r0", NASTY)
    assert len(text.lines) == 1
    assert "\\n2026" in text.lines[0]
    assert as_json.objects[0]["message"] == f"replica r0 said {NASTY}"


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\x7f", "\x9f", "\u2028"])
def test_no_control_character_reaches_who_reads_the_log(text: Log, as_json: Log, character: str) -> None:
    for log in (text, as_json):
        log.logger.info("model m%s", character)
        assert len(log.lines) == 1
        assert character not in log.lines[0]
    assert as_json.objects[0]["message"] == f"model m{character}"


def test_tracebacks_are_kept(text: Log, as_json: Log) -> None:
    try:
        raise LookupError("why")
    except LookupError:
        for log in (text, as_json):
            log.logger.exception("failed")
    assert text.lines[-1] == "LookupError: why"
    assert as_json.objects[0]["traceback"].endswith("LookupError: why")


def test_half_a_character_is_no_reason_to_lose_a_line(as_json: Log) -> None:
    as_json.logger.info("read %s", "a\ud83db")
    assert as_json.objects[0]["message"] == "read a\\ud83db"


def test_unwritten_lines_cost_nothing(text: Log) -> None:
    class Dear(AccessLine):
        def fields(self) -> dict[str, object]:
            raise AssertionError("was built")

    text.logger.setLevel("ERROR")
    text.logger.info(Dear(ended()))
    assert text.lines == []


def test_a_program_logs_as_it_is_told() -> None:
    program = (
        "import logging; from router.settings import start_log;"
        "from router.observe.log_format import formatter; start_log('info', formatter('json'));"
        "logging.getLogger('kvring').info('line\\nbroken'); logging.getLogger('kvring').debug('not this')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["message"] == "line\nbroken"
