"""Choosing tokens: greedy, temperature, nucleus, and draws that repeat."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.batch import Sampling, Work
from replica.model.sampling import choose, draw, uniform


def work(sampled: int = 0, **sampling: float) -> Work:
    return Work(1, [1], 0, (0,), True, Sampling(**sampling), sampled)  # type: ignore[arg-type]


def logits_of(masses: list[float]) -> torch.Tensor:
    return torch.tensor(masses).log()


def frequencies(masses: list[float], draws: int = 4000, **sampling: float) -> list[float]:
    logits = logits_of(masses).expand(draws, -1)
    counts = Counter(choose(logits, [work(sampled, **sampling) for sampled in range(draws)]))
    return [counts[token] / draws for token in range(len(masses))]


def test_temperature_zero_is_argmax() -> None:
    logits = torch.randn(40, 500, generator=torch.Generator().manual_seed(0))
    assert choose(logits, [work(n) for n in range(40)]) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-3])
def test_a_tiny_temperature_is_argmax_too(temperature: float) -> None:
    logits = torch.randn(40, 500, generator=torch.Generator().manual_seed(0))
    works = [work(n, temperature=temperature, top_p=0.9) for n in range(40)]
    assert choose(logits, works) == logits.argmax(-1).tolist()


def test_draws_follow_the_distribution() -> None:
    assert frequencies([0.5, 0.2, 0.3], temperature=1.0) == pytest.approx([0.5, 0.2, 0.3], abs=0.03)


def test_temperature_flattens_the_distribution() -> None:
    masses = [0.64, 0.04, 0.32]
    roots = [math.sqrt(mass) for mass in masses]
    expected = [root / sum(roots) for root in roots]
    assert frequencies(masses, temperature=2.0) == pytest.approx(expected, abs=0.03)


def test_the_nucleus_is_the_fewest_tokens_that_reach_top_p() -> None:
    expected = [0.5 / 0.8, 0.0, 0.3 / 0.8]
    assert frequencies([0.5, 0.2, 0.3], temperature=1.0, top_p=0.7) == pytest.approx(expected, abs=0.03)


def test_a_top_p_of_nothing_keeps_the_best_token() -> None:
    assert frequencies([0.3, 0.4, 0.3], draws=50, temperature=1.0, top_p=1e-9) == [0.0, 1.0, 0.0]


def test_a_wide_nucleus_is_found_beyond_the_first_look() -> None:
    flat = torch.zeros(5000)
    drawn = {draw(flat, 1.0, 0.999, uniform(3, index)) for index in range(2000)}
    assert len(drawn) > 1000


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**63),
    temperature=st.floats(1e-4, 100),
    top_p=st.floats(1e-6, 1.0),
    share=st.floats(0, 1, exclude_max=True),
)
def test_a_draw_is_a_token_of_the_nucleus(seed: int, temperature: float, top_p: float, share: float) -> None:
    logits = 10 * torch.randn(700, generator=torch.Generator().manual_seed(seed))
    token = draw(logits, temperature, top_p, share)
    mass = (logits.double() / temperature).softmax(-1)
    better = float(mass[mass > mass[token]].sum())
    assert better < top_p + 1e-9
    assert mass[token] > 0


def test_a_draw_depends_on_seed_and_index_alone() -> None:
    row = torch.randn(1, 300, generator=torch.Generator().manual_seed(5))
    alone = [choose(row, [work(n, temperature=1.0, seed=7)])[0] for n in range(30)]
    torch.manual_seed(99)
    together = choose(row.expand(30, -1), [work(n, temperature=1.0, seed=7) for n in range(30)])
    assert together == alone
    assert choose(row.expand(30, -1), [work(n, temperature=1.0, seed=8) for n in range(30)]) != alone


def test_the_first_draws_of_a_seed_never_change() -> None:
    # Tokens recomputed after an upgrade must be the tokens that were sent before it.
    assert [uniform(7, index) for index in range(2)] == [0.0007727454463428707, 0.919768592376734]


def test_greedy_and_drawn_requests_share_a_batch() -> None:
    logits = logits_of([0.3, 0.4, 0.3]).expand(3, -1)
    works = [work(), work(temperature=1.0, seed=1), work()]
    chosen = choose(logits, works)
    assert (chosen[0], chosen[2]) == (1, 1)
    assert chosen[1] == draw(logits[1], 1.0, 1.0, uniform(1, 0))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_an_error(broken: float) -> None:
    logits = torch.zeros(2, 10)
    logits[1, 3] = broken
    with pytest.raises(FloatingPointError):
        choose(logits, [work(), work()])
