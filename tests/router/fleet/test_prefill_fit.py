"""The fit of S: finds what prefills cost under noise, shrugs off outliers, and survives any input."""

from __future__ import annotations

import random
from math import exp, inf, isfinite, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.fleet.prefill_fit import PrefillFit, features_of, seconds_of
from router.wire.report import PrefillCost

CASES = ((100, 0), (1000, 500), (4000, 0), (20_000, 19_000), (20_000, 0))
GPU = PrefillCost(0.004, 2e-5, 4e-10)
CPU = PrefillCost(0.05, 7e-4, 2e-8)


def prompts(draw: random.Random, count: int) -> list[tuple[int, int]]:
    """Heavy-tailed prompts with some of each cached."""
    lengths = [max(2, min(30_000, int(exp(draw.gauss(7, 1.3))))) for _ in range(count)]
    return [(length, int(length * draw.choice((0, 0, 0.3, 0.8, 0.95)))) for length in lengths]


def fitted(true: PrefillCost, count: int, noise: float, seed: int, held_up: int = 0) -> PrefillFit:
    draw = random.Random(seed)
    fit = PrefillFit(PrefillCost())
    for number, (length, hit) in enumerate(prompts(draw, count)):
        seconds = true.seconds(length, hit) * exp(draw.gauss(0, noise))
        fit.observe(features_of(length, hit), seconds * (30 if held_up and number % held_up == 0 else 1))
    return fit


def worst(fit: PrefillFit, true: PrefillCost) -> float:
    """The largest factor, either way, by which S is off for short, long and mostly cached prompts."""
    ratios = [fit.cost.seconds(*case) / true.seconds(*case) for case in CASES]
    return max(max(ratio, 1 / ratio) for ratio in ratios)


@pytest.mark.parametrize("true", [GPU, CPU])
@pytest.mark.parametrize(
    ("count", "noise", "within"), [(20, 0.0, 1.25), (100, 0.1, 1.15), (100, 0.4, 1.45), (1000, 0.4, 1.25)]
)
def test_it_finds_what_prefills_cost(true: PrefillCost, count: int, noise: float, within: float) -> None:
    for seed in range(5):
        assert worst(fitted(true, count, noise, seed), true) < within


def test_a_prefill_in_ten_that_was_held_up_changes_little() -> None:
    for seed in range(5):
        assert worst(fitted(CPU, 300, 0.1, seed, held_up=10), CPU) < 1.4


def test_it_follows_a_replica_that_became_slower() -> None:
    fit = fitted(GPU, 300, 0.1, seed=1)
    draw = random.Random(2)
    slower = PrefillCost(0.012, 6e-5, 1.2e-9)
    for length, hit in prompts(draw, 200):
        fit.observe(features_of(length, hit), slower.seconds(length, hit) * exp(draw.gauss(0, 0.1)))
    assert worst(fit, slower) < 1.2


def test_it_knows_how_sure_it_is() -> None:
    features = features_of(1000, 300)
    deviations = [fitted(GPU, count, 0.2, seed=3).variance(features) ** 0.5 for count in (0, 5, 50, 500)]
    assert deviations == sorted(deviations, reverse=True)
    assert deviations[0] > 1
    assert deviations[-1] < 0.1


def test_without_evidence_it_returns_towards_its_start_only_slowly() -> None:
    fit = fitted(CPU, 200, 0.1, seed=4)
    before = fit.cost.seconds(1000, 0)
    # Prefills of one length say nothing of the others, and must not change them.
    for _ in range(1000):
        fit.observe(features_of(64, 0), CPU.seconds(64, 0))
    assert fit.cost.seconds(64, 0) == pytest.approx(CPU.seconds(64, 0), rel=0.02)
    assert fit.cost.seconds(1000, 0) == pytest.approx(before, rel=0.1)


def test_what_starts_at_zero_stays_there() -> None:
    fit = PrefillFit(PrefillCost(0.0, 1e-4, 0.0))
    for _ in range(50):
        fit.observe(features_of(1000, 0), 0.3)
    assert (fit.cost.base_seconds, fit.cost.per_token_context_seconds) == (0.0, 0.0)
    assert fit.cost.per_token_seconds == pytest.approx(3e-4, rel=0.05)


_ANY = st.floats() | st.sampled_from((0.0, -1.0, nan, inf, 1e-300, 1e300, 1e-9, 1e6))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(_ANY, _ANY, _ANY, _ANY), max_size=60),
    st.tuples(*[st.floats(0, 1e4) for _ in range(3)]),
)
def test_garbage_leaves_it_finite_and_not_negative(
    garbage: list[tuple[float, float, float, float]], start: tuple[float, float, float]
) -> None:
    fit = PrefillFit(PrefillCost(*start))
    for *features, seconds in garbage:
        fit.observe(features, seconds)
        for begun, learnt in zip(start, _values(fit.cost), strict=True):
            assert isfinite(learnt)
            assert begun / 1001 <= learnt <= begun * 1001
    assert fit.variance(features_of(1000, 0)) >= 0


def test_features_are_what_s_is_linear_in() -> None:
    for case in CASES:
        assert seconds_of(CPU, features_of(*case)) == pytest.approx(CPU.seconds(*case))


def _values(cost: PrefillCost) -> tuple[float, float, float]:
    return cost.base_seconds, cost.per_token_seconds, cost.per_token_context_seconds
