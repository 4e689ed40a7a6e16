"""Calibration: equal replicas cost nearly the same, a slower one is believed, a wrong one harms no other."""

from __future__ import annotations

import random
from math import exp, inf, isfinite, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.load import PrefillMeter, PrefillShape
from router.config import CalibrationOptions
from router.fleet.calibration import Calibration
from router.wire.report import PrefillCost

TRUE = PrefillCost(0.02, 2e-4, 3e-8)


class Prices:
    """A fleet's replicas, at speeds of their own, and what calibration makes of them."""

    def __init__(self, speeds: list[float], seed: int, **options: Any) -> None:
        self.calibration = Calibration(CalibrationOptions(**options))
        self.speeds = speeds
        self.factors = [0.0] * len(speeds)
        self.costs = [PrefillCost()] * len(speeds)
        self.meters = [PrefillMeter(PrefillCost()) for _ in speeds]
        self._draw = random.Random(seed)
        for number in range(len(speeds)):
            self.join(number)

    def join(self, number: int) -> None:
        def priced(cost: PrefillCost, factor: float) -> None:
            self.costs[number], self.factors[number] = cost, factor

        self.calibration.join(number, priced)
        self.calibration.serves(number, "m")

    def serve(self, rounds: int, noise: float, publish: bool = True) -> None:
        """Let every replica compute a prompt a round, held up at random, and tell of it."""
        for _ in range(rounds):
            for number, speed in enumerate(self.speeds):
                length = max(2, min(20_000, int(exp(self._draw.gauss(6.5, 1)))))
                hit = int(length * self._draw.choice((0, 0.5, 0.9)))
                shape = PrefillShape.of(length, hit)
                seconds = shape.seconds(TRUE) * speed * exp(self._draw.gauss(0, noise))
                if publish:
                    self.meters[number].learn(shape, 0, seconds)
                    self.calibration.published(number, self.meters[number].cost)
                self.calibration.observed(number, length, hit, seconds)

    def relative(self) -> list[float]:
        """What a typical prompt costs on each, by what it truly costs on one of speed 1."""
        return [cost.seconds(1000, 300) / TRUE.seconds(1000, 300) for cost in self.costs]


@pytest.mark.parametrize("publish", [True, False])
@pytest.mark.parametrize(("rounds", "apart"), [(30, 1.1), (400, 1.03)])
def test_equal_replicas_cost_nearly_the_same(publish: bool, rounds: int, apart: float) -> None:
    for seed in range(3):
        prices = Prices([1.0] * 4, seed)
        prices.serve(rounds, noise=0.4, publish=publish)
        relative = prices.relative()
        assert max(relative) / min(relative) < apart
        assert 0.8 < relative[0] < 1.25


@pytest.mark.parametrize("publish", [True, False])
@pytest.mark.parametrize("odd", [2.0, 0.5])
def test_a_replica_of_another_speed_is_believed(publish: bool, odd: float) -> None:
    for seed in range(3):
        prices = Prices([1.0, 1.0, 1.0, odd], seed)
        prices.serve(400, noise=0.4, publish=publish)
        *others, own = prices.relative()
        assert max(others) / min(others) < 1.1
        assert own / others[0] == pytest.approx(odd, rel=0.2)


def test_quiet_replicas_are_told_apart_after_some_thirty_prefills() -> None:
    prices = Prices([1.0, 1.0, 1.0, 2.0], seed=1)
    prices.serve(30, noise=0.1)
    *others, own = prices.relative()
    assert own / others[0] > 1.7


def test_two_kinds_half_and_half_are_told_apart() -> None:
    prices = Prices([1.0, 1.0, 2.0, 2.0], seed=2)
    prices.serve(400, noise=0.3)
    relative = prices.relative()
    assert relative[3] / relative[0] == pytest.approx(2.0, rel=0.15)
    assert relative[1] / relative[0] == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("wrong", [1e-6, 0.01, 100.0, 1e6])
def test_one_wrong_account_changes_that_of_no_other(wrong: float) -> None:
    prices = Prices([1.0] * 4, seed=3)
    prices.serve(100, noise=0.2)
    before = prices.relative()
    liar = PrefillCost(TRUE.base_seconds * wrong, TRUE.per_token_seconds * wrong, 3e-8 * wrong)
    for number in range(300):
        # Moves a little, so that each counts.
        liar = PrefillCost(liar.base_seconds * (1.001 if number % 2 else 0.999), *_rest(liar))
        prices.calibration.published(0, liar)
        for other in (1, 2, 3):
            prices.calibration.published(other, prices.meters[other].cost)
    assert prices.relative()[1:] == pytest.approx(before[1:], rel=0.1)


@pytest.mark.parametrize("wrong", [1 / 3, 3.0])
def test_a_replica_that_tells_wrong_is_found_out_by_what_its_prefills_take(wrong: float) -> None:
    prices = Prices([1.0] * 3, seed=10)
    told = PrefillCost(TRUE.base_seconds * wrong, TRUE.per_token_seconds * wrong, 3e-8 * wrong)
    for _ in range(60):
        prices.calibration.published(0, told)
        prices.serve(1, noise=0.2, publish=False)
    assert prices.relative() == pytest.approx([1.0] * 3, rel=0.2)
    # What it reports is believed as little.
    assert prices.factors[0] == pytest.approx(1 / wrong, rel=0.2)


def test_what_a_replica_reports_is_scaled_like_its_prices() -> None:
    prices = Prices([1.0] * 4, seed=4)
    prices.serve(60, noise=0.5)
    for cost, factor, meter in zip(prices.costs, prices.factors, prices.meters, strict=True):
        # 1,000 tokens with 300 cached are about what was served.
        assert cost.seconds(1000, 300) == pytest.approx(factor * meter.cost.seconds(1000, 300), rel=0.15)


def test_near_one_each_account_is_taken_as_it_is() -> None:
    prices = Prices([1.0] * 4, seed=5, unlike_ratio=0.999)
    prices.serve(200, noise=0.4)
    for cost, meter in zip(prices.costs, prices.meters, strict=True):
        assert cost.seconds(1000, 300) == pytest.approx(meter.cost.seconds(1000, 300), rel=0.15)


def test_a_new_replica_starts_as_the_fleet_is() -> None:
    prices = Prices([1.0] * 3, seed=6)
    prices.serve(100, noise=0.1)
    prices.calibration.restarted(2)
    assert prices.relative()[2] == pytest.approx(prices.relative()[0], rel=0.05)
    prices.calibration.leave(1)
    prices.calibration.leave(1)
    prices.join(1)
    assert prices.relative()[1] == pytest.approx(prices.relative()[0], rel=0.05)
    # Of another model: nothing is known.
    prices.calibration.serves(1, "another")
    assert prices.costs[1] == PrefillCost()


def test_the_shipped_default_holds_until_something_is_known() -> None:
    prices = Prices([1.0], seed=7, start={"base_seconds": 1.0, "per_token_seconds": 0.5})
    assert prices.costs == [PrefillCost(1.0, 0.5, 3e-9)]
    assert prices.calibration.error(0) is None


def test_the_error_tells_size_and_side_and_falls_as_it_learns() -> None:
    prices = Prices([1.0], seed=8)
    prices.calibration.published(0, TRUE)
    errors = []
    for _ in range(300):
        prices.calibration.observed(0, 1000, 200, 2 * TRUE.seconds(1000, 200))
        error = prices.calibration.error(0)
        assert error is not None
        errors.append(error)
    assert errors[0].observations == 1
    assert (errors[0].bias, errors[0].absolute) == pytest.approx((-0.5, 0.5))
    assert errors[-1].observations == 300
    assert abs(errors[-1].bias) < errors[-1].absolute + 1e-9 < 0.1


def test_an_absurd_account_is_no_account() -> None:
    prices = Prices([1.0], seed=10)
    for cost in (PrefillCost(0.0, 1e-300, 0.0), PrefillCost(0.0, 0.99e-12, 0.0), PrefillCost(2e4, 1e-4, 0.0)):
        prices.calibration.published(0, cost)
        assert (prices.costs, prices.factors) == ([PrefillCost()], [1.0])


@pytest.mark.parametrize(("told", "factor"), [(1e-12, 1e3), (1e3, 1e-3)])
def test_what_a_replica_reports_is_never_scaled_beyond_reason(told: float, factor: float) -> None:
    prices = Prices([1.0] * 4, seed=11)
    prices.serve(30, noise=0.1)
    prices.calibration.published(0, PrefillCost(0.0, told, 0.0))
    for _ in range(50):
        prices.calibration.observed(0, 1000, 0, 0.2)
    assert prices.factors[0] == factor


_ANY = st.floats() | st.sampled_from((0.0, nan, inf, 1e-300, 1e300, 1e4))
_COST = st.tuples(*[st.floats(0, 1e308)] * 3)
_EVENT = st.tuples(st.integers(0, 3), st.integers(-5, 10**7), st.integers(-5, 10**7), _ANY, st.none() | _COST)


@settings(max_examples=60, deadline=None)
@given(st.lists(_EVENT, max_size=80))
def test_garbage_leaves_prices_finite_and_not_negative(
    events: list[tuple[int, int, int, float, tuple[float, float, float] | None]],
) -> None:
    prices = Prices([1.0] * 3, seed=9)
    for number, prompt, hit, seconds, cost in events:
        if cost is not None:
            prices.calibration.published(number, PrefillCost(*cost))
        prices.calibration.observed(number, prompt, hit, seconds)
        for price, factor in zip(prices.costs, prices.factors, strict=True):
            assert all(
                isfinite(value) and value >= 0 for value in (price.base_seconds, *_rest(price), factor)
            )


def _rest(cost: PrefillCost) -> tuple[float, float]:
    return cost.per_token_seconds, cost.per_token_context_seconds
