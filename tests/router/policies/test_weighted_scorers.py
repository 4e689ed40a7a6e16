"""weighted_scorers: prefix, queue and KV usage, weighed 3 : 2 : 2, as replicas report them."""

from __future__ import annotations

import random

import pytest

from router.placement.view import FleetView, LoadView
from router.policies import load_policy
from tests.router.views import ask_for, changed, digest_of, fleet_of, names_of

DRAW = random.Random(0)
SHARED = DRAW.choices(range(50_000), k=512)
PROMPT = ask_for([*SHARED, *DRAW.choices(range(50_000), k=512)])
HALF = ask_for(SHARED)


def _fleet(full: str, load: LoadView | None = None, half: str = "") -> FleetView:
    """The one that holds the prompt, under `load`, and one that holds half of it."""
    digests = {full: digest_of([PROMPT], f"{full}:0")}
    if half:
        digests[half] = digest_of([HALF], f"{half}:0")
    return changed(fleet_of(names_of(3), **({full: load} if load else {})), digests=digests)


def test_a_whole_prefix_outweighs_the_longest_queue_but_not_full_blocks_too() -> None:
    policy = load_policy("weighted_scorers")
    queue = _fleet("replica-0", LoadView(waiting=9))
    assert policy.rank(PROMPT, queue, 0.0)[0].name == "replica-0"
    full = _fleet("replica-0", LoadView(waiting=9, kv_usage=0.6))
    best, *_, last = policy.rank(PROMPT, full, 0.0)
    assert last.name == "replica-0"
    assert best.score == pytest.approx(-4.0)
    assert last.score == pytest.approx(-(3 + 0 + 2 * 0.4))


def test_queues_count_from_the_shortest_to_the_longest_of_the_moment() -> None:
    policy = load_policy("weighted_scorers")
    loads = {name: LoadView(waiting=count) for name, count in zip(names_of(3), (100, 101, 102), strict=True)}
    scores = {one.name: -one.score for one in policy.rank(HALF, fleet_of(names_of(3), **loads), 0.0)}
    assert [scores[name] for name in names_of(3)] == pytest.approx([4.0, 3.0, 2.0])


def test_own_leases_and_queued_seconds_count_for_nothing() -> None:
    policy = load_policy("weighted_scorers")
    load = LoadView(work_seconds=99.0, own_work_seconds=9.0, in_flight=500)
    assert policy.rank(PROMPT, _fleet("replica-0", load), 0.0)[0].name == "replica-0"


def test_the_precise_scorer_counts_between_holders() -> None:
    for kind, scores in (("prompt", (3.0, 1.5, 0.0)), ("holders", (3.0, 0.0, 0.0))):
        policy = load_policy("weighted_scorers", {"prefix_score": kind})
        ranking = policy.rank(PROMPT, _fleet("replica-0", half="replica-1"), 0.0)
        found = {one.name: -one.score - 4 for one in ranking}
        assert [found[name] for name in names_of(3)] == pytest.approx(scores)
    alone = load_policy("weighted_scorers", {"prefix_score": "holders"})
    assert -alone.rank(PROMPT, _fleet("replica-2"), 0.0)[0].score == pytest.approx(7.0)
