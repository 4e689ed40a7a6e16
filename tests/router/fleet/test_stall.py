"""Stall: which silence is explained, by what was announced, and which is not."""

from __future__ import annotations

import pytest

from router.fleet.health import Health, Standing
from router.fleet.stall import Stall


def _standing(health: Health) -> Standing:
    return health.standing


def _stall() -> tuple[Health, Stall, list[tuple[float, ...]]]:
    health = Health(failures_to_suspect=2)
    health.probe_passed(0.0)
    seen: list[tuple[float, ...]] = []
    return health, Stall(health, lambda *values: seen.append(values)), seen


def test_a_stream_is_waited_for_as_long_as_announced_and_three_times_s() -> None:
    health, stall, _ = _stall()
    stall.sent("a", 4.0, 1.0, 10.0, streamed=True)
    stall.judge(17.0, 2.0)
    assert _standing(health) is Standing.READY
    stall.judge(17.1, 2.0)
    assert _standing(health) is Standing.SUSPECT
    assert "announced" in health.why


def test_short_silence_is_none() -> None:
    health, stall, _ = _stall()
    stall.sent("a", 0.0, 0.01, 10.0, streamed=True)
    stall.judge(12.0, 2.0)
    assert _standing(health) is Standing.READY
    stall.judge(12.1, 2.0)
    assert _standing(health) is Standing.SUSPECT


def test_an_answer_that_comes_whole_is_never_late() -> None:
    health, stall, seen = _stall()
    stall.sent("a", 0.0, 0.01, 10.0, streamed=False)
    stall.judge(1000.0, 2.0)
    assert _standing(health) is Standing.READY
    stall.began("a", 1000.0)
    assert not seen
    assert len(stall) == 0


def test_bytes_of_any_answer_break_the_silence() -> None:
    health, stall, _ = _stall()
    stall.sent("a", 0.0, 0.01, 10.0, streamed=True)
    for second in range(11, 30):
        health.heard(float(second))
        stall.judge(second + 1.0, 2.0)
    assert _standing(health) is Standing.READY
    stall.judge(31.1, 2.0)
    assert _standing(health) is Standing.SUSPECT


def test_work_announced_since_is_waited_for_and_work_done_is_a_sign_of_life() -> None:
    health, stall, _ = _stall()
    stall.sent("a", 0.0, 0.5, 10.0, streamed=True)
    # Others' prompts came before it: eight seconds, of which one is done every two.
    for passed in range(0, 16, 2):
        stall.told(8.0 - passed / 2, 1, 0.5, 10.0 + passed)
        stall.judge(11.9 + passed, 2.0)
        assert _standing(health) is Standing.READY
    # One second left is announced, and three times S: nothing is done any more.
    stall.told(1.0, 1, 0.5, 26.0)
    stall.judge(26.4, 2.0)
    assert _standing(health) is Standing.READY
    stall.judge(26.6, 2.0)
    assert _standing(health) is Standing.SUSPECT


@pytest.mark.parametrize(("running", "usage"), [(2, 0.5), (1, 0.6)])
def test_whoever_decodes_is_alive(running: int, usage: float) -> None:
    health, stall, _ = _stall()
    stall.told(1.0, 1, 0.5, 10.0)
    stall.sent("a", 0.0, 0.5, 10.0, streamed=True)
    stall.told(1.5, running, usage, 12.4)
    stall.judge(13.0, 2.0)
    assert _standing(health) is Standing.READY


def test_more_work_let_in_is_no_sign_of_life() -> None:
    health, stall, _ = _stall()
    stall.told(1.0, 1, 0.5, 10.0)
    stall.sent("a", 0.0, 0.1, 10.0, streamed=True)
    for step in range(1, 20):
        stall.told(1.0 + step / 100, 1, 0.5, 10.0 + step / 10)
    stall.judge(12.1, 2.0)
    assert _standing(health) is Standing.SUSPECT


def test_unanswered_polls_of_one_that_always_answers_are_explained_by_nothing() -> None:
    health, stall, _ = _stall()
    stall.sent("a", 0.0, 100.0, 10.0, streamed=True)
    stall.unanswered(10.1, 10.7, busy_seconds=0.0)
    assert health.doubted
    stall.unanswered(10.7, 11.3, busy_seconds=0.0)
    assert _standing(health) is Standing.SUSPECT


def test_a_long_prefill_explains_unanswered_polls_of_others_for_a_while() -> None:
    health, stall, _ = _stall()
    stall.sent("a", 0.5, 1.0, 10.0, streamed=False)
    for now in (10.7, 11.3, 13.4):
        stall.unanswered(now - 0.6, now, busy_seconds=10.0)
        assert not health.doubted
    stall.unanswered(13.4, 14.0, busy_seconds=10.0)
    stall.unanswered(14.0, 14.6, busy_seconds=10.0)
    assert _standing(health) is Standing.SUSPECT


def test_nothing_explains_unanswered_polls_for_ever() -> None:
    health, stall, _ = _stall()
    stall.sent("a", 0.0, 1000.0, 10.0, streamed=True)
    stall.unanswered(19.0, 19.6, busy_seconds=10.0)
    assert not health.doubted
    stall.unanswered(19.6, 20.2, busy_seconds=10.0)
    stall.unanswered(20.2, 20.8, busy_seconds=10.0)
    assert _standing(health) is Standing.SUSPECT


def test_watchers_are_told_once_each_when_it_hangs() -> None:
    _, stall, _ = _stall()
    told: list[str] = []

    def gone() -> None:
        told.append("gone")

    stall.watchers.add(lambda: told.append("stream"))
    stall.watchers.add(gone)
    stall.watchers.discard(gone)
    stall.unanswered(1.0, 1.6, busy_seconds=0.0)
    assert not told
    for now in (2.2, 2.8, 3.4):
        stall.unanswered(now - 0.6, now, busy_seconds=0.0)
    assert told == ["stream"]
    # One that began while all hung, and so was sent there all the same.
    stall.watchers.add(lambda: told.append("later"))
    stall.unanswered(3.4, 4.0, busy_seconds=0.0)
    assert told == ["stream", "later"]
    assert not stall.watchers


def test_what_was_held_against_it_is_not_so_again() -> None:
    health, stall, seen = _stall()
    stall.sent("a", 0.0, 0.1, 10.0, streamed=True)
    stall.judge(20.0, 2.0)
    assert _standing(health) is Standing.SUSPECT
    health.probe_passed(21.0)
    stall.judge(21.1, 2.0)
    assert _standing(health) is Standing.READY
    # It begins after all, or ends: neither tells how it is now.
    stall.began("a", 22.0)
    stall.ended("a")
    assert not seen
    stall.sent("b", 0.0, 0.1, 22.0, streamed=True)
    stall.judge(24.1, 2.0)
    assert _standing(health) is Standing.SUSPECT


def test_first_bytes_are_told_beside_what_was_expected() -> None:
    _, stall, seen = _stall()
    stall.sent("a", 2.0, 0.5, 10.0, streamed=True)
    stall.sent("b", 2.0, 0.5, 10.0, streamed=True)
    stall.began("a", 13.0)
    stall.began("a", 14.0)
    stall.ended("b")
    assert seen == [(3.0, 2.5, 13.0)]


def test_silence_begins_with_the_oldest_that_is_awaited_or_the_last_byte() -> None:
    health, stall, _ = _stall()
    since = [stall.silent_since]
    stall.sent("a", 0.0, 0.1, 10.0, streamed=True)
    stall.sent("b", 0.0, 0.1, 11.0, streamed=True)
    since.append(stall.silent_since)
    health.heard(12.0)
    since.append(stall.silent_since)
    stall.ended("a")
    stall.ended("b")
    since.append(stall.silent_since)
    assert since == [None, 10.0, 12.0, 12.0]
