"""prefixaware: to one of those that were sent the longest prefix, and load counts for nothing."""

from __future__ import annotations

import random

from loadgen.bench.held_bytes import held_bytes
from router.placement.ask import Choice
from router.placement.view import LoadView
from router.policies import load_policy
from tests.router.views import ask_for, changed, fleet_of, names_of

DRAW = random.Random(0)
FLEET = fleet_of(names_of(4))


def test_the_longest_prefix_wins_over_any_load() -> None:
    policy = load_policy("prefixaware")
    shared = DRAW.choices(range(50_000), k=320)
    start, longer = ask_for(shared), ask_for([*shared, *DRAW.choices(range(50_000), k=96)])
    for ask, name in ((start, "replica-0"), (start, "replica-1"), (longer, "replica-1")):
        choice = next(one for one in policy.rank(ask, FLEET, 0.0) if one.name == name)
        policy.commit(ask, choice, 0.0)
    spreads = [bytes([number]) for number in range(60)]
    fork = [ask_for([*shared, 7, 7], spread=spread) for spread in spreads]
    assert {policy.rank(ask, FLEET, 0.0)[0].name for ask in fork} == {"replica-0", "replica-1"}
    busy = fleet_of(names_of(4), **{"replica-1": LoadView(in_flight=500, work_seconds=99.0)})
    on = [ask_for([*shared, *DRAW.choices(range(9), k=9)], spread=spread) for spread in spreads]
    assert {policy.rank(ask, busy, 0.0)[0].name for ask in on} == {"replica-0", "replica-1"}
    best = policy.rank(longer, busy, 0.0)[0]
    assert (best.name, best.expected_tokens) == ("replica-1", 415)


def test_less_than_a_chunk_is_no_match() -> None:
    policy = load_policy("prefixaware")
    policy.commit(ask_for([3] * 40), policy.rank(ask_for([3] * 40), FLEET, 0.0)[0], 0.0)
    served = {
        policy.rank(ask_for([*[3] * 31, 1], spread=bytes([number])), FLEET, 0.0)[0].name
        for number in range(60)
    }
    assert served == set(names_of(4))


def test_who_starts_anew_or_vanishes_is_forgotten() -> None:
    policy = load_policy("prefixaware")
    ask = ask_for([3] * 400)
    first = policy.rank(ask, FLEET, 0.0)[0]
    policy.commit(ask, first, 0.0)
    rows = [row for row in FLEET.replicas if row.name != first.name]
    assert {choice.expected_tokens for choice in policy.rank(ask, changed(FLEET, rows), 1.0)} == {0}
    assert policy.rank(ask, FLEET, 2.0)[0] == policy.rank(ask, FLEET, 0.0)[0]
    renewed = FLEET.of([type(row)(row.name, "new") for row in FLEET.replicas], FLEET.ring)
    assert {choice.expected_tokens for choice in policy.rank(ask, renewed, 2.0)} == {0}


def test_restarts_leave_nothing_behind() -> None:
    policy = load_policy("prefixaware")
    ask = ask_for([3] * 400)
    sizes = []
    for epoch in range(3):
        for name in ("replica-0", "replica-1"):
            policy.commit(ask, Choice(name, f"{name}:{epoch}"), float(epoch))
        sizes.append(held_bytes(policy))
    assert sizes[0] == sizes[1] == sizes[2]
    # The last lives are those that are known.
    last = FLEET.of([type(row)(row.name, f"{row.name}:2") for row in FLEET.replicas], FLEET.ring)
    matched = [choice.name for choice in policy.rank(ask, last, 9.0) if choice.expected_tokens]
    assert sorted(matched) == ["replica-0", "replica-1"]


def test_who_vanishes_leaves_the_request_to_who_was_sent_less_of_it() -> None:
    policy = load_policy("prefixaware")
    whole = ask_for([3] * 640)
    for ask, name in ((whole, "replica-0"), (ask_for([3] * 320), "replica-1")):
        policy.commit(ask, next(one for one in policy.rank(ask, FLEET, 0.0) if one.name == name), 0.0)
    assert policy.rank(whole, FLEET, 0.0)[0].name == "replica-0"
    best = policy.rank(whole, changed(FLEET, FLEET.replicas[1:]), 0.0)[0]
    assert (best.name, best.expected_tokens) == ("replica-1", 320)


def test_the_trie_is_bounded_and_loses_what_was_seen_longest_ago() -> None:
    policy = load_policy("prefixaware", {"remember_names": 64})
    asks = [ask_for([number] * 640) for number in range(6)]
    for ask in asks:
        policy.commit(ask, policy.rank(ask, FLEET, 0.0)[0], 0.0)
    known = [policy.rank(ask, FLEET, 0.0)[0].expected_tokens for ask in asks]
    # 20 nodes a prompt: the last three whole, and of the one before the beginning.
    assert known == [0, 0, 128, 639, 639, 639]
