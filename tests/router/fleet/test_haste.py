"""Haste: polls ahead of their time are bounded, whatever falls silent."""

from __future__ import annotations

from router.fleet.haste import Haste


def test_a_quarter_more_polls_at_most() -> None:
    haste = Haste()
    taken = sum(haste.take(200.0, step / 1000) for step in range(10_000))
    assert 500 <= taken <= 551


def test_there_is_always_one_after_a_while() -> None:
    haste = Haste()
    assert haste.take(0.4, 0.0)
    assert not haste.take(0.4, 1.0)
    assert haste.take(0.4, 11.0)


def test_what_was_not_used_does_not_add_up() -> None:
    haste = Haste()
    assert haste.take(200.0, 0.0)
    assert sum(haste.take(200.0, 1e6) for _ in range(200)) == 50
