"""Counts of other routers in a load book: all that is known counts once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from router.fleet.board import Board
from router.fleet.load import Lease, LoadBook
from router.placement.view import FleetView, LoadView, ReplicaView
from router.wire.report import LoadReport
from tests.router.views import fleet_of


def _book() -> LoadBook:
    board = Board()
    return LoadBook(board, board.take())


def _shown(book: LoadBook) -> tuple[int, int, float]:
    view = book.view(0.0)
    return view.in_flight, view.in_flight_tokens, view.own_work_seconds


def _report(work: float, sequence: int, running: int = 0) -> LoadReport:
    return LoadReport(work, running, 0, 0.0, sequence)


def test_others_are_added_and_replaced_and_own_stays_own() -> None:
    book = _book()
    lease = book.open(1.0, 0.0, 100)
    book.others(3, 300, [(2.0, 0.0), (0.5, 0.0)])
    assert _shown(book) == (4, 400, 3.5)
    assert (book.in_flight, book.in_flight_tokens, book.unreported_seconds) == (1, 100, 1.0)
    book.others(1, 10, [(0.25, 0.1)])
    assert _shown(book) == (2, 110, 1.25)
    book.close(lease)
    assert _shown(book) == (1, 10, 0.25)
    book.others(0, 0, ())
    assert _shown(book) == (0, 0, 0.0)


def test_what_a_report_covers_is_owed_no_more_whoever_sent_it() -> None:
    book = _book()
    book.open(1.0, 1.0)
    book.others(2, 0, [(2.0, 1.0), (0.5, 3.0)])
    # Asked for at 2.0: what was told after may not be in it.
    book.reported(_report(3.0, 1), covers_until=2.0, now=3.0)
    assert _shown(book) == (3, 0, 0.5)
    # The same counts, read once more: they are as old as they were.
    book.others(2, 0, [(2.0, 1.0), (0.5, 3.0)])
    assert _shown(book) == (3, 0, 0.5)
    book.others(2, 0, [(0.75, 3.5)])
    assert _shown(book) == (3, 0, 0.75)
    # An older report that was overtaken covers nothing.
    book.reported(_report(9.0, 0), covers_until=9.0, now=9.0)
    assert _shown(book) == (3, 0, 0.75)


def test_what_others_owe_is_in_an_estimate_of_their_work() -> None:
    book = _book()
    book.others(5, 0, [(2.0, 1.0)])
    book.estimated(1.5, 1, 4, 0.0, now=2.0)
    view = book.view(2.0)
    assert view.work_seconds + view.own_work_seconds == 2.0
    book.others(5, 0, [(1.0, 2.5)])
    view = book.view(2.5)
    assert view.work_seconds + view.own_work_seconds == 1.5


def test_another_process_owes_nobody_anything() -> None:
    book = _book()
    book.reported(_report(1.0, 5), covers_until=10.0, now=10.0)
    book.others(2, 20, [(2.0, 11.0)])
    book.forget_report()
    assert _shown(book) == (0, 0, 0.0)
    # Of the new one nothing is covered, though its clock may be ours of before.
    book.others(1, 5, [(2.0, 9.0)])
    assert _shown(book) == (1, 5, 2.0)


def test_a_first_byte_after_others_work_tells_no_prefill() -> None:
    book = _book()
    assert book.open(1.0, 0.0).behind_seconds == 0.0
    book = _book()
    book.others(1, 0, [(2.0, 0.0)])
    assert book.open(1.0, 0.0).behind_seconds == 2.0


def test_counts_of_one_that_left_touch_nobody_else() -> None:
    board = Board()
    book = LoadBook(board, board.take())
    lease = book.open(1.0, 0.0, 10)
    book.leave()
    board.give_back(0)
    successor = LoadBook(board, board.take())
    book.others(5, 50, [(1.0, 0.0)])
    book.close(lease)
    assert _shown(successor) == (0, 0, 0.0)


def test_after_any_history_only_others_are_left() -> None:
    draw = random.Random(1)
    book = _book()
    leases: list[Lease] = []
    for step in range(2_000):
        now = float(step)
        done = draw.random()
        if done < 0.4:
            leases.append(book.open(draw.random(), now, draw.randrange(100)))
        elif leases and done < 0.8:
            book.close(leases.pop(draw.randrange(len(leases))))
        elif done < 0.9:
            book.others(draw.randrange(9), draw.randrange(900), [(draw.random(), now - draw.random())])
        else:
            book.reported(_report(draw.random(), step), now - draw.random(), now)
    for lease in leases:
        book.close(lease)
    book.others(3, 7, ())
    assert _shown(book) == (3, 7, 0.0)


@pytest.mark.parametrize("routers", [1, 2, 4])
def test_what_is_shared_is_not_guessed_as_well(routers: int) -> None:
    # A burst of which each of several routers sent a part.
    running = 12 * routers
    alone = LoadView(1.0, 10.0, 0.5, in_flight=12, running=running)
    shared = replace(alone, own_work_seconds=0.5 * routers, in_flight=running)

    def waits(load: LoadView) -> float:
        fleet: FleetView = fleet_of(["a", "b"], a=load)
        assert isinstance(fleet.replicas[0], ReplicaView)
        return fleet.wait(0, 10.0, fleet.others_factor(1.0))

    # Guessed alone, told together: the same, and never both.
    assert waits(alone) == pytest.approx(1.0 + 0.5 * routers)
    assert waits(shared) == pytest.approx(1.0 + 0.5 * routers)
