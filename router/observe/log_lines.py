"""Writes log lines from a thread, so that nobody who reads them slowly can stop a router.

A pipe whose reader has stopped takes 64 KiB and then holds whoever writes. An event loop that is held serves
nobody; so lines are put into a bounded buffer and a thread writes them. Where it is full, lines are dropped
and counted: a log with a gap is better than a gateway that hangs.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from select import select
from threading import Event, Lock, Thread
from typing import TextIO

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

# Ten thousand access lines: seconds of the busiest router.
_MOST_CHARACTERS = 4 << 20
# Access lines are gathered for so long; that saves a wake-up and a write for each.
_GATHER_SECONDS = 0.1
# How long the end of the process waits for who reads.
_LAST_SECONDS = 2.0
# A pipe takes so much as a whole: lines of several processes never mix within one. Files take any length so.
_PIPE_BYTES = 4096
_FILE_BYTES = 64 * 1024


def write_log_aside() -> None:
    """Let a thread write what is logged to stderr from now on. A process that does so must not be forked."""
    root = logging.getLogger()
    for place, handler in enumerate(root.handlers):
        if type(handler) is logging.StreamHandler and handler.stream is sys.stderr:
            aside = LineHandler(sys.stderr)
            aside.setFormatter(handler.formatter)
            root.handlers[place] = aside


class LineHandler(logging.Handler):
    """Writes what is logged, in order: records at once, and what is `put` within a tenth of a second."""

    def __init__(self, stream: TextIO, most_characters: int = _MOST_CHARACTERS) -> None:
        """Lines go to the stream's file descriptor in its encoding, past its own buffer."""
        super().__init__()
        self._number = stream.fileno()
        self._encoding = stream.encoding
        self._piece_bytes = _FILE_BYTES if stat.S_ISREG(os.fstat(self._number).st_mode) else _PIPE_BYTES
        self._most_characters = most_characters
        self._lock = Lock()
        self._some, self._hurry, self._idle = Event(), Event(), Event()
        self._idle.set()
        self._lines: list[str] = []
        # Of lines that are not written yet, their ends included.
        self._characters = 0
        self.dropped = 0
        self._thread = Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Take a line, without its end and without waiting for anybody."""
        size = len(line) + 1
        with self._lock:
            if self._characters + size > self._most_characters:
                self.dropped += 1
                return
            if not self._lines:
                self._idle.clear()
                self._some.set()
            self._characters += size
            self._lines.append(line)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record, to be written at once: the process may be about to end by what it tells."""
        try:
            self.put(self.format(record))
            self._hurry.set()
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all is written, but not for long; `logging` calls it when the process ends in order."""
        self._hurry.set()
        self._idle.wait(_LAST_SECONDS)

    def _run(self) -> None:
        while True:
            self._some.wait()
            self._hurry.wait(_GATHER_SECONDS)
            with self._lock:
                lines, self._lines = self._lines, []
                self._some.clear()
                self._hurry.clear()
            text = "\n".join(lines) + "\n"
            for piece in self._pieces(text.encode(self._encoding, "backslashreplace")):
                self._write(piece)
            with self._lock:
                self._characters -= len(text)
                if not self._lines:
                    self._idle.set()

    def _pieces(self, raw: bytes) -> Iterator[bytes]:
        """Yield whole lines, as many as may be written at once; a longer one by itself."""
        begin = 0
        while begin < len(raw):
            end = begin + self._piece_bytes
            if end < len(raw):
                end = raw.rfind(b"\n", begin, end) + 1 or raw.find(b"\n", end) + 1
            yield raw[begin:end]
            begin = end

    def _write(self, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest:
            try:
                rest = rest[os.write(self._number, rest) :]
            except BlockingIOError:
                # Who else has this end of the pipe wanted it so.
                with suppress(OSError, ValueError):
                    select((), (self._number,), ())
            except OSError:
                # Nobody reads any more, or the disk is full.
                with self._lock:
                    self.dropped += piece.count(b"\n")
                return


class LogMetrics(Collector):
    """What the log of this process has lost, read when scraped."""

    def describe(self) -> Iterable[Metric]:
        """Return the metrics, so that they can be read by name."""
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as of now."""
        handlers = logging.getLogger().handlers
        yield CounterMetricFamily(
            "kvring_log_lines_dropped",
            "Lines that the log could not take: who reads it is too slow or gone, or the disk is full.",
            sum(handler.dropped for handler in handlers if isinstance(handler, LineHandler)),
        )
