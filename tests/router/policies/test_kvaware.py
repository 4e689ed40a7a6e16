"""kvaware: to the longest match, whatever its load, where it is long enough; else by session or rate."""

from __future__ import annotations

import random

from router.placement.view import FleetView, LoadView
from router.policies import load_policy
from tests.router.views import ask_for, changed, digest_of, fleet_of, names_of

DRAW = random.Random(0)
SHARED = DRAW.choices(range(50_000), k=1024)
BUSY = LoadView(work_seconds=99.0, in_flight=500)


def _holder(name: str, tokens: list[int]) -> FleetView:
    fleet = fleet_of(names_of(4), **{name: BUSY})
    return changed(fleet, digests={name: digest_of([ask_for(tokens)], f"{name}:0")})


def test_a_long_match_wins_over_any_load() -> None:
    ask = ask_for([*SHARED, *DRAW.choices(range(50_000), k=2000)])
    best = load_policy("kvaware").rank(ask, _holder("replica-3", SHARED), 0.0)[0]
    assert (best.name, best.reason, best.expected_tokens) == ("replica-3", "match", 1024)


def test_what_several_hold_alike_always_goes_to_the_same_one() -> None:
    digests = {name: digest_of([ask_for(SHARED)], f"{name}:0") for name in names_of(4)[1:]}
    fleet = changed(fleet_of(names_of(4)), digests=digests)
    asks = [ask_for([*SHARED, *DRAW.choices(range(50_000), k=99)]) for _ in range(40)]
    bests = {load_policy("kvaware").rank(ask, fleet, 0.0)[0].name for ask in asks}
    assert len(bests) == 1
    assert bests < set(digests)


def test_beyond_the_threshold_a_match_counts_for_nothing() -> None:
    policy = load_policy("kvaware")
    rest = DRAW.choices(range(50_000), k=2001)
    fleet = _holder("replica-3", SHARED)
    bests = {
        policy.rank(ask_for([*SHARED, *rest], spread=bytes([number])), fleet, 0.0)[0].name
        for number in range(60)
    }
    assert bests == set(names_of(4))
    sticky = [
        policy.rank(ask_for([*SHARED, *rest], spread=bytes([number]), session=b"s"), fleet, 0.0)[0]
        for number in range(60)
    ]
    assert {(choice.name, choice.reason) for choice in sticky} == {(sticky[0].name, "session")}
    strict = load_policy("kvaware", {"threshold_tokens": 2001})
    assert strict.rank(ask_for([*SHARED, *rest]), fleet, 0.0)[0].name == "replica-3"


def test_without_a_match_the_least_requests_of_the_last_minute_count() -> None:
    policy = load_policy("kvaware")
    fleet = fleet_of(names_of(3))
    ranking = policy.rank(ask_for([1]), fleet, 0.0)
    for choice, count in zip(ranking[::-1], (1, 2, 3), strict=True):
        for _ in range(count):
            policy.commit(ask_for([1]), choice, 10.0 * count)
    # Sent: one at 10 s, two at 20 s, three at 30 s; at 85 s only these three count.
    assert [one.name for one in policy.rank(ask_for([1]), fleet, 31.0)] == [one.name for one in ranking[::-1]]
    late = [one.name for one in policy.rank(ask_for([1]), fleet, 85.0)]
    assert late == [ranking[1].name, ranking[2].name, ranking[0].name]


def test_replicas_that_tell_nothing_hold_nothing() -> None:
    ask = ask_for(SHARED)
    ranking = load_policy("kvaware").rank(ask, fleet_of(names_of(3)), 0.0)
    assert {choice.expected_tokens for choice in ranking} == {0}
    assert ranking[0].reason == "rate"
