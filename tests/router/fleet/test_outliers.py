"""Outliers: a replica that suddenly became slow stands out of its fleet; a slower machine does not."""

from __future__ import annotations

import random
from functools import partial

import pytest

from router.config import FleetOptions, OutlierOptions
from router.fleet.calibration import Calibration
from router.fleet.outliers import Outliers
from router.wire.report import PrefillCost


class _Fleet:
    """Replicas by number, and who was taken out when."""

    def __init__(self, count: int, **options: float) -> None:
        self.outliers = Outliers(lambda: OutlierOptions(**options))
        self.out: list[int] = []
        self.paces = [self.outliers.join(number, partial(self._take_out, number)) for number in range(count)]
        for number in range(count):
            self.outliers.serves(number, "m")

    def _take_out(self, number: int, _: float) -> None:
        self.out.append(number)

    def serve(self, times: int, expected: float = 0.5, **slow: float) -> None:
        """Serve so often on each; `slow` are factors, as r2=8."""
        for _ in range(times):
            for number, pace in enumerate(self.paces):
                pace.observed(expected * slow.get(f"r{number}", 1.1), expected, 0.0)


def test_one_that_became_slow_is_out_within_a_few_requests() -> None:
    fleet = _Fleet(3)
    fleet.serve(30)
    assert not fleet.out
    fleet.serve(7, r1=8)
    assert fleet.out == [1]
    # While it is out, what still comes from before is not held against it.
    fleet.serve(20, r1=8)
    assert fleet.out == [1]


def test_where_all_are_slow_the_cause_is_another() -> None:
    fleet = _Fleet(3)
    fleet.serve(30)
    fleet.serve(30, r0=20, r1=20, r2=20)
    assert not fleet.out


def test_what_is_slow_by_little_time_is_not_slow() -> None:
    fleet = _Fleet(3)
    fleet.serve(30, expected=0.01)
    fleet.serve(30, expected=0.01, r1=20)
    assert not fleet.out


def test_a_lone_replica_is_never_out() -> None:
    fleet = _Fleet(1)
    fleet.serve(30)
    fleet.serve(30, r0=50)
    assert not fleet.out


@pytest.mark.parametrize(("count", "share", "most"), [(2, 0.34, 1), (4, 0.34, 1), (6, 0.34, 2), (6, 0.0, 0)])
def test_only_a_share_is_out_at_once(count: int, share: float, most: int) -> None:
    fleet = _Fleet(count, share=share)
    fleet.serve(30)
    # One after the other, so that each stands out of the rest.
    slow = {}
    for number in range(count - 1):
        slow[f"r{number}"] = 50.0
        fleet.serve(12, **slow)
    assert len(fleet.out) == most


def test_only_replicas_of_one_model_are_compared() -> None:
    fleet = _Fleet(3)
    fleet.outliers.serves(1, "another")
    fleet.serve(30)
    fleet.serve(30, r1=8)
    assert not fleet.out


def test_one_trial_decides() -> None:
    fleet = _Fleet(3)
    fleet.serve(30)
    fleet.serve(7, r1=8)
    fleet.outliers.returned(1)
    fleet.serve(1, r1=8)
    assert fleet.out == [1, 1]
    fleet.outliers.returned(1)
    fleet.serve(1)
    # Passed: it takes as many as ever to be out again.
    fleet.serve(3, r1=8)
    assert fleet.out == [1, 1]
    fleet.serve(5, r1=8)
    assert fleet.out == [1, 1, 1]


def test_another_process_begins_anew() -> None:
    fleet = _Fleet(3)
    fleet.serve(30)
    fleet.outliers.restarted(1)
    fleet.serve(15, r1=8)
    assert not fleet.out
    fleet.outliers.leave(1)
    fleet.serve(30, r1=8)
    assert not fleet.out


@pytest.mark.parametrize("slower", [3.0, 8.0])
def test_a_slower_machine_is_priced_and_not_taken_out(slower: float) -> None:
    """What is expected of it is what calibration makes of what is observed, from the start on."""
    chance = random.Random(7)
    fleet, calibration = _Fleet(3), Calibration(FleetOptions().calibration)
    true = PrefillCost(0.05, 5e-4, 0.0)
    for number in range(3):
        calibration.join(number, lambda *_: None)
        calibration.serves(number, "m")
    for _ in range(200):
        for number in range(3):
            prompt = chance.randint(500, 4000)
            seconds = true.seconds(prompt, 0) * (slower if number == 1 else 1.0) * chance.uniform(0.9, 1.2)
            expected = calibration.cost(number).seconds(prompt, 0)
            fleet.paces[number].observed(seconds, expected, 0.0)
            calibration.observed(number, prompt, 0, seconds)
    assert not fleet.out
    # The same machine, throttled: that is another matter.
    for _ in range(8):
        prompt = 4000
        expected = calibration.cost(1).seconds(prompt, 0)
        seconds = 10 * slower * true.seconds(prompt, 0)
        fleet.paces[1].observed(seconds, expected, 0.0)
        calibration.observed(1, prompt, 0, seconds)
    assert fleet.out == [1]
