"""How soon a worker is started again."""

from __future__ import annotations

from router.workers.backoff import Backoff


def test_pauses_double_up_to_a_bound() -> None:
    backoff = Backoff()
    pauses = [backoff.begin(None, 100.0) for _ in range(7)]
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_one_that_served_for_long_starts_soon_again() -> None:
    backoff = Backoff()
    assert [backoff.begin(0.0, 1.0), backoff.begin(2.0, 3.0), backoff.begin(10.0, 30.0)] == [1, 2, 1]


def test_it_is_due_once() -> None:
    backoff = Backoff()
    assert not backoff.due(100.0)
    backoff.begin(None, 100.0)
    assert [backoff.due(100.9), backoff.due(101.0), backoff.due(101.1)] == [False, True, False]
    backoff.begin(None, 102.0)
    backoff.cancel()
    assert not backoff.due(200.0)
