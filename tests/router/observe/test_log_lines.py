"""Lines that a thread writes: all of them and in order, or dropped and counted where nobody reads."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest
from prometheus_client import CollectorRegistry

from router.observe.log_format import formatter
from router.observe.log_lines import LineHandler, LogMetrics


class _Pipe:
    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.reader, self.writer = os.fdopen(reading, "rb"), os.fdopen(writing, "w")

    def read(self) -> list[bytes]:
        """Read all that comes until the writer is closed."""
        self.writer.close()
        return self.reader.read().splitlines()

    def close(self) -> None:
        self.writer.close()
        self.reader.close()


@pytest.fixture
def pipe() -> Iterator[_Pipe]:
    pipe = _Pipe()
    yield pipe
    pipe.close()


def test_lines_come_whole_and_in_order(pipe: _Pipe) -> None:
    handler = LineHandler(pipe.writer)
    for number in range(500):
        handler.put(f"{number} ü" + "x" * (number % 90))
    handler.flush()
    lines = pipe.read()
    assert [int(line.split()[0]) for line in lines] == list(range(500))
    assert lines[91].decode() == "91 üx"


def test_pieces_of_a_pipe_are_whole_lines_that_no_other_process_gets_between(pipe: _Pipe) -> None:
    handler = LineHandler(pipe.writer)
    raw = b"".join(b"y" * length + b"\n" for length in (4095, 4096, 10, 9000, 0, *range(300)))
    pieces = list(handler._pieces(raw))
    assert b"".join(pieces) == raw
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert all(len(piece) <= 4096 for piece in pieces if piece.count(b"\n") > 1)


def test_nobody_waits_for_a_reader_that_does_not_read(pipe: _Pipe) -> None:
    handler = LineHandler(pipe.writer, most_characters=100_000)
    line = "z" * 99
    # The pipe takes 64 KiB; without a limit, and where it wrote by itself, this would not end.
    for _ in range(10_000):
        handler.put(line)
    assert handler.dropped > 0
    dropped = handler.dropped
    os.set_blocking(pipe.reader.fileno(), True)
    taken = 0
    while taken < 10_000 - dropped:
        taken += pipe.reader.read1(1 << 16).count(b"\n")
    handler.flush()
    # It goes on once somebody reads again.
    handler.put("again")
    handler.flush()
    assert pipe.read() == [b"again"]
    assert taken + dropped == 10_000
    assert handler.dropped == dropped


def test_lines_wait_where_the_pipe_is_set_not_to_block(pipe: _Pipe) -> None:
    handler = LineHandler(pipe.writer)
    os.set_blocking(pipe.writer.fileno(), False)
    for number in range(3000):
        handler.put(f"{number} " + "x" * 90)
    taken = b""
    while taken.count(b"\n") < 3000:
        taken += pipe.reader.read1(1 << 16)
    assert [int(line.split()[0]) for line in taken.splitlines()] == list(range(3000))


def test_lines_for_a_reader_that_is_gone_are_counted(pipe: _Pipe) -> None:
    handler = LineHandler(pipe.writer)
    pipe.reader.close()
    for _ in range(3):
        handler.put("nobody")
    handler.flush()
    assert handler.dropped == 3
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        registry = CollectorRegistry()
        registry.register(LogMetrics())
        assert registry.get_sample_value("kvring_log_lines_dropped_total") == 3
    finally:
        root.removeHandler(handler)


def test_what_cannot_be_formatted_is_no_fault_of_who_logs(
    pipe: _Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = LineHandler(pipe.writer)
    handler.setFormatter(formatter("text"))
    for arguments in ((), (1, 2)):
        handler.handle(logging.LogRecord("kvring", logging.INFO, "", 0, "a %s", arguments or ("b",), None))
    handler.flush()
    assert [line.split(maxsplit=4)[4] for line in pipe.read()] == [b"a b"]
    assert "TypeError" in capsys.readouterr().err


_PROGRAM = """\
import logging
from router.observe.access import AccessLog
from router.observe.log_format import formatter
from router.observe.log_lines import write_log_aside
from router.observe.outcome import Outcome
from router.settings import start_log
start_log("info", formatter("text"))
logging.getLogger("kvring").info("before")
write_log_aside()
logging.getLogger("kvring").info("after")
log = AccessLog()
for number in range({lines}):
    log.enter(Outcome(f"r{{number}}", "/v1/completions", 0.0, status=200))
print("served", flush=True)
"""


def _program(lines: int, stderr: int | TextIO) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", _PROGRAM.format(lines=lines)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=stderr, text=True)


def test_nothing_is_lost_when_a_program_ends() -> None:
    with _program(300, subprocess.PIPE) as program:
        _, told = program.communicate(timeout=60)
    names = [re.split(r"[ =]", line)[4:6] for line in told.splitlines()]
    assert [name for name, *_ in names[:2]] == ["before", "after"]
    assert names[2:] == [["request_id", f"r{number}"] for number in range(300)]
    assert program.returncode == 0


def test_a_program_whose_log_nobody_reads_serves_and_ends(pipe: _Pipe) -> None:
    with _program(20_000, pipe.writer) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "served\n"
        assert program.wait(timeout=30) == 0
