"""Decisions are kept for the last requests only, and explained without a word of their text."""

from __future__ import annotations

import random
from typing import Any

import orjson

from router.observe.attribution import Misses
from router.observe.decisions import KEPT_CHOICES, Decisions, Record, record_of
from router.observe.explain import explanation, why
from router.observe.outcome import Outcome
from router.observe.sightings import Sightings
from router.placement.ask import Choice
from tests.router.views import ask_for, fleet_of, names_of


def record(count: int = 3, outcome: Outcome | None = None) -> Record:
    draw = random.Random(1)
    ask, fleet = ask_for([draw.randrange(50_000) for _ in range(100)]), fleet_of(names_of(count))
    ranking = [Choice(name, f"{name}:0", 10 * place) for place, name in enumerate(fleet.names)]
    return record_of(ask, "tokens", Sightings().look(ask, fleet, 1.0), ranking, "p", 5.0, outcome=outcome)


def test_the_oldest_are_forgotten() -> None:
    decisions, records = Decisions(3), [record() for _ in range(5)]
    for number, one in enumerate(records):
        decisions.keep(str(number), one)
    assert len(decisions) == 3
    assert decisions.find("1") is None
    assert decisions.find("4") is records[4]


def test_of_two_with_one_id_the_newer_is_found_for_as_long_as_it_is_kept() -> None:
    decisions, old, new = Decisions(2), record(), record()
    for id, one in (("same", old), ("same", new), ("other", record())):
        decisions.keep(id, one)
    assert decisions.find("same") is new
    decisions.keep("third", record())
    assert decisions.find("same") is None


def test_a_large_fleets_ranking_is_kept_to_its_best() -> None:
    told = explanation(record(40))
    assert (len(told["ranking"]), told["replicas"]) == (KEPT_CHOICES, 40)


def test_an_explanation_before_and_after_the_answer() -> None:
    outcome = Outcome("id-1", "/v1/completions", 0.0)
    kept = record(outcome=outcome)
    before: dict[str, Any] = explanation(kept)
    assert (before["outcome"], before["chosen"], before["runner_up"]) == (None, "replica-0", "replica-1")
    assert (before["blocks"], before["block_tokens"], before["prompt_tokens"]) == (6, 16, 100)
    outcome.replica, outcome.status, outcome.hit_tokens = "replica-1", 200, 64
    outcome.misses, outcome.first_byte_seconds = Misses(cold=32, partial_block=4), 0.25
    after = explanation(kept)["outcome"]
    assert (after["replica"], after["hit_tokens"], after["first_byte_seconds"]) == ("replica-1", 64, 0.25)
    assert after["misses"] == {"cold": 32, "partial_block": 4}
    assert after["predicted_seconds"] == 0.0
    orjson.dumps(explanation(kept))


def test_an_empty_ranking_is_explained_too() -> None:
    told = explanation(record(0))
    assert (told["chosen"], told["runner_up"], told["ranking"]) == (None, None, [])
    assert explanation(record(1))["why"] == "there was no other replica"


def test_why_names_what_tipped_the_scales() -> None:
    chosen = Choice("a", "a:0", 96, wait_seconds=0.1, prefill_seconds=0.2, reason="home")
    assert why(chosen, Choice("b", "b:0", 0, 0.1, 0.5)) == (
        "b computes 300 ms longer, is expected to hold 96 tokens less"
    )
    assert why(chosen, Choice("b", "b:0", 96, 0.3, 0.2)) == "b waits 200 ms longer"
    assert why(chosen, Choice("b", "b:0", 96, 0.0, 0.2)) == "b waits 100 ms less, but a is preferred (home)"
    assert why(chosen, Choice("b", "b:0", 96, 0.1, 0.2)) == "b is predicted alike"
