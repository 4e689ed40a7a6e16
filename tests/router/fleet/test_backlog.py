"""The backlog: whose requests stand at a replica, and how long its queue takes."""

from __future__ import annotations

import pytest

from router.fleet.backlog import Backlog
from router.fleet.board import Board
from router.fleet.load import LoadBook
from router.wire.report import LoadReport


def _book() -> LoadBook:
    board = Board()
    return LoadBook(board, board.take())


def _report(running: int, waiting: int, sequence: int) -> LoadReport:
    return LoadReport(0.0, running, waiting, 0.0, sequence)


def test_requests_are_counted_once_whoever_tells_of_them() -> None:
    book = _book()
    leases = [book.open(0.1, now=float(number)) for number in range(5)]
    assert book.requests == 5
    # All five are among these, and three are of others.
    book.answered(leases[0], _report(6, 2, 1), now=5.0)
    assert book.requests == 8
    book.open(0.1, now=6.0)
    book.close(leases[1])
    assert book.requests == 8
    # Others that share their counts tell of two of the three, then of more than it reported.
    book.others(2, 0, ())
    assert book.requests == 8
    book.others(7, 0, ())
    assert book.requests == 12
    # One that reports fewer than this router has: some of its answers are still being read.
    book.others(0, 0, ())
    book.reported(_report(1, 0, 2), covers_until=7.0, now=7.0)
    assert book.requests == 5
    # One that was made while there were five, and came when they had ended.
    for lease in leases:
        book.close(lease)
    book.reported(_report(5, 0, 3), covers_until=7.5, now=8.0)
    assert book.requests == book.in_flight == 1
    book.reported(_report(5, 0, 4), covers_until=8.5, now=9.0)
    assert book.requests == 5
    book.forget_report()
    assert book.requests == 1


def test_a_queue_is_what_stands_beyond_those_that_run_at_once() -> None:
    backlog = Backlog()
    backlog.told(8, 0, 8, now=0.0)
    backlog.sent += 3
    # Nobody was told to wait: there may be room for more than ever ran.
    assert backlog.queued == 0
    backlog.told(2, 4, 6, now=1.0)
    # Two of eight run, so that the next step takes in all.
    assert backlog.queued == 0
    backlog.told(8, 2, 10, now=2.0)
    backlog.sent += 5
    assert backlog.queued == 7


def test_those_that_ended_since_it_was_told_are_no_queue() -> None:
    backlog = Backlog()
    backlog.told(8, 20, 28, now=0.0)
    backlog.sent += 5
    backlog.ended += 10
    assert backlog.queued == 15
    backlog.ended += 20
    assert backlog.queued == 0


def test_a_queue_takes_as_long_as_those_before_it_are_served() -> None:
    backlog = Backlog()
    backlog.told(4, 0, 4, now=0.0)
    backlog.served(2.0, queued=0)
    backlog.told(4, 8, 12, now=10.0)
    # It may have only just come.
    assert backlog.wait_seconds(10.0) == 0.0
    # Four are served in two seconds: eight in four.
    assert backlog.wait_seconds(11.0) == pytest.approx(4.0)
    # An answer that took six, of which it queued four, tells the same.
    for _ in range(50):
        backlog.served(6.0, queued=8)
    assert backlog.wait_seconds(11.0) == pytest.approx(4.0)
    backlog.told(4, 0, 4, now=12.0)
    assert backlog.wait_seconds(20.0) == 0.0
    backlog.told(4, 8, 12, now=20.0)
    assert backlog.wait_seconds(20.1) == 0.0
