"""Slow start: shares that grow, and views that are never left empty."""

from __future__ import annotations

from collections.abc import Sequence

from router.fleet.slow_start import SlowStart
from router.placement.ring import Ring
from router.placement.roster import Roster
from router.placement.view import Column, Columns


def _roster(count: int) -> Roster:
    names = tuple(f"r{number}" for number in range(count))
    return Roster(names, names, tuple(range(count)), Ring(names), count)


def _columns(*in_flight: float) -> Columns:
    columns: list[Sequence[float]] = [[0.0] * len(in_flight) for _ in Column]
    columns[Column.IN_FLIGHT] = in_flight
    return columns


def test_the_share_grows_with_time() -> None:
    start = SlowStart(lambda: 100.0)
    assert not start
    start.follow({2: 100.0})
    assert start
    roster = _roster(3)
    for now, in_flight, admitted in (
        (0.0, 0, True),
        (0.0, 1, False),
        (50.0, 5, True),
        (50.0, 6, False),
        (99.0, 10, False),
        (100.0, 10, True),
    ):
        names = start.admitted(roster, _columns(10, 10, in_flight), now).names
        assert ("r2" in names) is admitted, (now, in_flight)
        assert names[:2] == ("r0", "r1")


def test_where_all_warm_nobody_is_left_out() -> None:
    start = SlowStart(lambda: 100.0)
    start.follow({0: 100.0, 1: 100.0})
    roster = _roster(2)
    assert start.admitted(roster, _columns(50, 60), 0.0) is roster


def test_it_ends() -> None:
    start = SlowStart(lambda: 100.0)
    start.follow({1: 100.0})
    roster = _roster(2)
    assert start.admitted(roster, _columns(0, 9), 101.0) is roster
    assert not start
