"""The witness explains what was served, and never fails a request over it."""

from __future__ import annotations

import logging

import pytest

from router.observe.attribution import Misses
from router.observe.outcome import Outcome
from router.observe.shadow import Shadows
from router.observe.witness import Witness
from router.placement.ask import Choice
from router.policies import load_policy
from tests.router.views import ask_for, fleet_of, names_of


def _served(name: str) -> Outcome:
    """What a request comes to that a replica of this name served, 32 of its 100 tokens from its cache."""
    witness = Witness(load_policy("round_robin"), "round_robin", Shadows([]), None, lambda *_: None)
    ask, fleet = ask_for(list(range(100))), fleet_of(names_of(2))
    outcome = Outcome(
        "id", "/v1/completions", 0.0, replica=name, status=200, prompt_tokens=100, hit_tokens=32
    )
    outcome.evicted_tokens = 0
    ranking = [Choice(name, f"{name}:0")]
    decision = witness.decided(ask, fleet, ranking, 1.0, outcome)
    witness.accepted(decision, ranking[0], 1.0)
    witness.began(decision, 2.0)
    witness.ended(decision, outcome)
    return outcome


def test_misses_are_explained() -> None:
    assert _served("replica-1").misses == Misses(partial_block=4, cold=64)


def test_what_cannot_be_explained_is_unknown_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "kvring.witness"):
        assert _served("nobody").misses == Misses(unknown=68)
    assert "request id missed" in caplog.text


def test_who_goes_on_may_have_joined_later() -> None:
    """What it missed is told by the view that it was chosen by, and the sum is its own."""
    witness = Witness(load_policy("round_robin"), "round_robin", Shadows([]), None, lambda *_: None)
    ask, names = ask_for(list(range(100))), names_of(3)
    outcome = Outcome("id", "/v1/completions", 0.0, replica=names[2], status=200, prompt_tokens=100)
    outcome.hit_tokens = outcome.evicted_tokens = 0
    first, later = (Choice(name, f"{name}:0") for name in (names[0], names[2]))
    decision = witness.decided(ask, fleet_of(names[:2]), [first], 1.0, outcome)
    witness.accepted(decision, first, 1.0)
    witness.began(decision, 2.0)
    decision.not_reached(first.name)
    witness.taken_over(decision, fleet_of(names), later, 3.0)
    witness.began(decision, 4.0)
    witness.ended(decision, outcome)
    assert outcome.misses == Misses(partial_block=4, routed_by_membership=96)
