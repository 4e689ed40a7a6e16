"""cache_aware: by what was sent where, by tree size without a match, by queue where load is uneven."""

from __future__ import annotations

import random

import pytest

from router.placement.ask import Ask, Choice
from router.placement.policy import Policy
from router.placement.view import FleetView, LoadView
from router.policies import load_policy
from tests.router.views import ask_for, fleet_of, names_of

DRAW = random.Random(0)
FLEET = fleet_of(names_of(4))


def _tokens(count: int) -> list[int]:
    return DRAW.choices(range(50_000), k=count)


def _send(policy: Policy, ask: Ask, fleet: FleetView = FLEET) -> Choice:
    choice = policy.rank(ask, fleet, 0.0)[0]
    policy.commit(ask, choice, 0.0)
    return choice


@pytest.mark.parametrize(
    ("in_flight", "uneven"),
    [
        ((65, 0, 9, 9), True),
        ((64, 0, 9, 9), False),
        ((300, 200, 250, 250), False),
        ((301, 200, 250, 250), True),
    ],
)
def test_uneven_load_turns_to_the_shortest_queue(in_flight: tuple[int, ...], uneven: bool) -> None:
    policy = load_policy("cache_aware")
    ask = ask_for(_tokens(400))
    matched = {"replica-0": LoadView(in_flight=0)}
    home = next(
        one for one in policy.rank(ask, fleet_of(names_of(4), **matched), 0.0) if one.name == "replica-0"
    )
    policy.commit(ask, home, 0.0)
    loads = {name: LoadView(in_flight=count) for name, count in zip(names_of(4), in_flight, strict=True)}
    best = policy.rank(ask, fleet_of(names_of(4), **loads), 0.0)[0]
    expected = ("replica-1", "shortest queue") if uneven else ("replica-0", "match")
    assert (best.name, best.reason) == expected


def test_a_match_must_be_more_than_the_threshold() -> None:
    policy = load_policy("cache_aware")
    shared = _tokens(304)
    home = _send(policy, ask_for(shared))
    assert home.reason == "smallest tree"
    # 304 of 1,000 tokens are more than 0.3, of 1,014 they are less: then the smallest tree, not the home's.
    assert policy.rank(ask_for([*shared, *_tokens(696)]), FLEET, 0.0)[0].name == home.name
    below = policy.rank(ask_for([*shared, *_tokens(710)]), FLEET, 0.0)[0]
    assert below.name != home.name
    assert below.reason == "smallest tree"


def test_without_a_match_trees_are_filled_evenly_in_tokens_not_requests() -> None:
    policy = load_policy("cache_aware")
    long = _send(policy, ask_for(_tokens(4000)))
    served = [_send(policy, ask_for(_tokens(400))).name for _ in range(27)]
    assert long.name not in served
    assert {served.count(name) for name in names_of(4) if name != long.name} == {9}


def test_a_new_replica_draws_all_new_prompts() -> None:
    policy = load_policy("cache_aware")
    for _ in range(40):
        _send(policy, ask_for(_tokens(400)), fleet_of(names_of(3)))
    assert {_send(policy, ask_for(_tokens(400))).name for _ in range(10)} == {"replica-3"}


def test_who_starts_anew_has_an_empty_tree() -> None:
    policy = load_policy("cache_aware")
    asks = [ask_for(_tokens(400)) for _ in range(8)]
    homes = [_send(policy, ask) for ask in asks]
    renewed = FLEET.of([type(row)(row.name, "new") for row in FLEET.replicas], FLEET.ring)
    for ask, home in zip(asks, homes, strict=True):
        assert policy.rank(ask, FLEET, 1.0)[0].name == home.name
        assert policy.rank(ask, renewed, 1.0)[0].reason == "smallest tree"
    policy.commit(asks[0], policy.rank(asks[0], renewed, 1.0)[0], 1.0)
    assert policy.rank(asks[0], renewed, 1.0)[0].reason == "match"


@pytest.mark.parametrize("options", [{"remember_names": 64}, {"max_tree_tokens": 1024}])
def test_trees_are_bounded_and_lose_leaves_first(options: dict[str, int]) -> None:
    policy = load_policy("cache_aware", options)
    shared = _tokens(160)
    asks = [ask_for([*shared, *_tokens(320)]) for _ in range(20)]
    for ask in asks:
        _send(policy, ask, fleet_of(["replica-0"]))
    known = [policy.rank(ask, fleet_of(["replica-0"]), 0.0)[0].expected_tokens for ask in asks]
    # 10 blocks shared, 20 of their own: the third last has its beginning left, the others what they share.
    assert known == [160] * 17 + [384, 479, 479]
