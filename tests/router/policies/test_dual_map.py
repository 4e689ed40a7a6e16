"""dual_map: exactly two candidates a prefix: by match while that is fast, else by predicted time."""

from __future__ import annotations

import random
from collections import Counter

from router.placement.ask import Ask
from router.placement.view import LoadView
from router.policies import load_policy
from tests.router.views import ask_for, changed, digest_of, fleet_of, names_of

DRAW = random.Random(0)
NAMES = names_of(8)
SHARED = DRAW.choices(range(50_000), k=512)


def _same_prefix(number: int) -> Ask:
    return ask_for([*SHARED, number, *[9] * 99])


def _pair(ask: Ask) -> list[str]:
    return [choice.name for choice in load_policy("dual_map").rank(ask, fleet_of(NAMES), 0.0)[:2]]


def test_a_prefix_has_two_candidates_and_the_less_busy_takes_it() -> None:
    policy = load_policy("dual_map")
    pair = _pair(_same_prefix(0))
    assert len(set(pair)) == 2
    for number in range(60):
        for busy, idle in (pair, pair[::-1]):
            fleet = fleet_of(NAMES, **{busy: LoadView(in_flight=1, in_flight_tokens=100)})
            ranking = policy.rank(_same_prefix(number), fleet, 0.0)
            assert [choice.name for choice in ranking[:2]] == [idle, busy]


def test_prefixes_spread_over_all_pairs() -> None:
    pairs = Counter(frozenset(_pair(ask_for([number] * 600))) for number in range(400))
    assert len(pairs) > 20


def test_a_match_decides_until_it_is_too_slow() -> None:
    policy = load_policy("dual_map", {"slo_seconds": 4.0})
    ask = _same_prefix(0)
    holder, other = _pair(ask)
    digests = {holder: digest_of([ask], f"{holder}:0")}
    for wait, first in ((1.9, holder), (2.1, other)):
        load = LoadView(work_seconds=wait, in_flight_tokens=9999)
        ranking = policy.rank(ask, changed(fleet_of(NAMES, **{holder: load}), digests=digests), 0.0)
        assert ranking[0].name == first
    # Slow as it is, it is still taken where the other is slower.
    loads = {holder: LoadView(work_seconds=2.1), other: LoadView(work_seconds=3.0)}
    ranking = policy.rank(ask, changed(fleet_of(NAMES, **loads), digests=digests), 0.0)
    assert [choice.name for choice in ranking[:2]] == [holder, other]
    assert ranking[0].reason == "load"


def test_a_hot_prefix_is_told_apart_further_on() -> None:
    policy = load_policy("dual_map")
    fleet = fleet_of(NAMES)
    served: list[str] = []
    for number in range(200):
        choice = policy.rank(_same_prefix(number), fleet, float(number))[0]
        policy.commit(_same_prefix(number), choice, float(number))
        served.append(choice.name)
    assert len(set(served[:15])) <= 2
    assert len(set(served[40:])) == 8


def test_a_prefix_that_few_share_stays_on_its_pair() -> None:
    policy = load_policy("dual_map")
    fleet = fleet_of(NAMES)
    served = set()
    for number in range(600):
        # One in 20 is less than 1/16; the first 200 fill the window, as few requests make shares uncertain.
        alone = number < 200 or number % 20 != 0
        ask = ask_for(DRAW.choices(range(50_000), k=600)) if alone else _same_prefix(number)
        choice = policy.rank(ask, fleet, float(number))[0]
        policy.commit(ask, choice, float(number))
        served |= set() if alone else {choice.name}
    assert len(served) <= 2
