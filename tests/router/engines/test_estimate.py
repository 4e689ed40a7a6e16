"""Seconds of others' prefill: by tokens where they are told, by requests else, and never our own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.engines.engine import EngineLoad
from router.engines.estimate import others_work_seconds
from router.wire.report import PrefillCost

COST = PrefillCost(0.01, 1e-4, 0.0)


def seconds(tokens: float) -> float:
    return COST.seconds(tokens, 0)


def load(waiting: int, tokens: int | None = None) -> EngineLoad:
    return EngineLoad(running=3, waiting=waiting, waiting_tokens=tokens)


def test_by_requests_at_our_own_mean() -> None:
    assert others_work_seconds(load(5), 2, 0.3, seconds) == pytest.approx(0.9)
    assert others_work_seconds(load(5), 0, 0.3, seconds) == pytest.approx(1.5)


def test_by_tokens_each_request_having_its_part() -> None:
    assert others_work_seconds(load(4, 4000), 0, 99, seconds) == pytest.approx(4 * (0.01 + 0.1))
    assert others_work_seconds(load(4, 4000), 3, 99, seconds) == pytest.approx(0.01 + 0.1)


def test_all_ours_is_nothing_of_others() -> None:
    for tokens in (None, 5000):
        assert others_work_seconds(load(2, tokens), 2, 0.3, seconds) == 0
        assert others_work_seconds(load(2, tokens), 7, 0.3, seconds) == 0


def test_the_rest_of_a_chunked_prompt_is_of_others_only_where_none_of_ours_waits() -> None:
    assert others_work_seconds(load(0, 3000), 0, 0.3, seconds) == pytest.approx(0.31)
    assert others_work_seconds(load(0, 3000), 1, 0.3, seconds) == 0
    assert others_work_seconds(load(0, 0), 0, 0.3, seconds) == 0


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10**6),
    st.none() | st.integers(0, 10**9),
    st.integers(-5, 10**6),
    st.floats(0, 1e3),
)
def test_it_is_never_negative_and_falls_with_what_is_ours(
    waiting: int, tokens: int | None, own: int, mean: float
) -> None:
    told = load(waiting, tokens)
    work = others_work_seconds(told, own, mean, seconds)
    assert 0 <= work < float("inf")
    assert others_work_seconds(told, own + 1, mean, seconds) <= work
