"""Load books: what was dispatched counts until a report covers it, and leases always come out even."""

from __future__ import annotations

import random

import pytest

from router.fleet.board import Board
from router.fleet.load import Lease, LoadBook
from router.wire.report import LoadReport


def _book() -> LoadBook:
    board = Board()
    return LoadBook(board, board.take())


def _report(work: float, sequence: int) -> LoadReport:
    return LoadReport(work, 1, 2, 0.5, sequence)


def test_dispatched_work_counts_until_a_report_covers_it() -> None:
    book = _book()
    book.reported(_report(1.0, 1), covers_until=0.0, now=0.0)
    early = book.open(0.5, now=1.0)
    book.open(0.25, now=3.0)
    assert book.view(3.0).own_work_seconds == pytest.approx(0.75)
    # Asked for at 2.0: holds the first lease, cannot hold the second.
    book.reported(_report(1.2, 2), covers_until=2.0, now=3.5)
    view = book.view(3.5)
    assert (view.work_seconds, view.own_work_seconds, view.reported_at) == (1.2, 0.25, 3.5)
    assert (view.running, view.waiting, view.in_flight) == (1, 2, 2)
    book.close(early)
    assert book.view(4.0).own_work_seconds == 0.25


def test_an_answer_covers_its_own_request_and_those_before() -> None:
    book = _book()
    leases = [book.open(1.0, now=float(number)) for number in range(3)]
    book.answered(leases[1], _report(0.5, 7), now=5.0)
    assert book.view(5.0).own_work_seconds == 1.0
    # One that was overtaken on the way is older than what is known.
    book.answered(leases[2], _report(9.0, 6), now=6.0)
    assert book.view(6.0).work_seconds == 0.5


def test_waiting_passes_with_time() -> None:
    book = _book()
    book.reported(_report(2.0, 1), covers_until=0.0, now=10.0)
    assert book.view(11.0).wait_seconds(11.0) == pytest.approx(1.0)
    assert book.view(20.0).wait_seconds(20.0) == 0.0


def test_without_reports_only_open_prefills_count() -> None:
    book = _book()
    first, second = book.open(1.0, 0.0), book.open(2.0, 0.0)
    assert book.view(50.0).wait_seconds(50.0) == 3.0
    # Headers may be sent on admission: only a first byte tells that the prefill is over.
    book.answered(first, None, 51.0)
    assert book.view(51.0).wait_seconds(51.0) == 3.0
    book.began(first)
    assert book.view(51.0).wait_seconds(51.0) == 2.0
    book.close(second)
    book.close(first)
    assert book.view(52.0).wait_seconds(52.0) == 0.0


def test_after_any_history_an_idle_book_is_empty() -> None:
    draw = random.Random(0)
    book = _book()
    open_leases: list[Lease] = []
    for step in range(5_000):
        now = float(step)
        if open_leases and draw.random() < 0.5:
            lease = open_leases.pop(draw.randrange(len(open_leases)))
            if draw.random() < 0.6:
                report = _report(draw.random(), step) if draw.random() < 0.5 else None
                book.answered(lease, report, now)
            for _ in range(draw.choice((1, 1, 2))):
                book.close(lease)
        else:
            open_leases.append(book.open(draw.random(), now))
        assert book.in_flight == len(open_leases)
    for lease in open_leases:
        book.close(lease)
    assert book.in_flight == 0
    assert book.view(9e9).own_work_seconds == 0.0
