"""kv_overlap: tokens to prefill, less what is held, plus the tokens of all that is active."""

from __future__ import annotations

import random
from dataclasses import replace

from router.placement.ask import Ask
from router.placement.policy import Policy
from router.placement.view import LoadView
from router.policies import load_policy
from tests.router.views import ask_for, changed, digest_of, fleet_of, names_of

DRAW = random.Random(0)
TOKENS = DRAW.choices(range(50_000), k=1024)
PROMPT = ask_for(TOKENS)
HELD = {"replica-0": digest_of([PROMPT], "replica-0:0")}


def _sent(policy: Policy, ask: Ask, name: str) -> None:
    """Send a prompt at 0, so that its prefill has ended by 99."""
    choice = next(one for one in policy.rank(ask, fleet_of(names_of(2)), 0.0) if one.name == name)
    policy.commit(ask, choice, 0.0)


def test_what_is_held_is_weighed_against_what_is_active() -> None:
    for active, first in ((1008, "replica-0"), (1040, "replica-1")):
        other = ask_for(DRAW.choices(range(50_000), k=active))
        loads = {"replica-0": LoadView(in_flight=1, in_flight_tokens=active)}
        fleet = changed(fleet_of(names_of(2), **loads), digests=HELD)
        for options, expected in (({}, first), ({"overlap_weight": 0}, "replica-1")):
            policy = load_policy("kv_overlap", options)
            _sent(policy, other, "replica-0")
            assert policy.rank(PROMPT, fleet, 99.0)[0].name == expected
    twice = load_policy("kv_overlap", {"overlap_weight": 2})
    _sent(twice, other, "replica-0")
    assert twice.rank(PROMPT, fleet, 99.0)[0].name == "replica-0"


def test_blocks_that_active_prompts_share_count_once_and_ended_ones_not_at_all() -> None:
    policy = load_policy("kv_overlap")
    for tail in range(3):
        _sent(policy, ask_for([*TOKENS, *[tail] * 32]), "replica-0")
    for in_flight, tokens in ((3, 1024 + 3 * 32), (1, 1024 + 32), (0, 1024)):
        loads = {"replica-0": LoadView(in_flight=in_flight, in_flight_tokens=in_flight * 1056)}
        ranking = policy.rank(PROMPT, changed(fleet_of(names_of(2), **loads), digests=HELD), 99.0)
        assert (ranking[0].name, ranking[0].score) == ("replica-0", tokens)


def test_what_is_remembered_of_active_prompts_is_bounded() -> None:
    policy = load_policy("kv_overlap", {"remember_names": 128})
    for tail in range(5):
        _sent(policy, ask_for([tail] * 1024), "replica-0")
    loads = {"replica-0": LoadView(in_flight=5, in_flight_tokens=5 * 1024)}
    costs = [one.score for one in policy.rank(PROMPT, fleet_of(names_of(2), **loads), 99.0)]
    assert costs == [2 * 1024, 2 * 1024 + 128 * 16]


def test_only_what_this_router_has_under_way_is_load() -> None:
    loads = {"replica-0": LoadView(work_seconds=99.0, waiting=50, running=64, kv_usage=1.0)}
    fleet = changed(fleet_of(names_of(2), **loads), digests=HELD)
    assert load_policy("kv_overlap").rank(PROMPT, fleet, 0.0)[0].name == "replica-0"


def test_a_prefill_counts_until_it_should_have_ended() -> None:
    policy = load_policy("kv_overlap")
    fleet = fleet_of(names_of(2))
    first, second = policy.rank(PROMPT, fleet, 10.0)
    policy.commit(PROMPT, first, 10.0)
    until = 10.0 + first.prefill_seconds
    # Without leases in the view, the prefill under way is the only difference.
    assert policy.rank(PROMPT, fleet, until - 0.01)[0].name == second.name
    assert policy.rank(PROMPT, fleet, until + 0.01)[0].name == first.name
    costs = {choice.name: choice.score for choice in policy.rank(PROMPT, fleet, until - 0.01)}
    assert costs[first.name] - costs[second.name] == 1024


def test_what_was_sent_before_a_restart_is_not_under_way_after_it() -> None:
    policy = load_policy("kv_overlap")
    fleet = fleet_of(names_of(2))
    first, second = policy.rank(PROMPT, fleet, 10.0)
    policy.commit(PROMPT, first, 10.0)
    assert policy.rank(PROMPT, fleet, 10.0)[0].name == second.name
    renewed = changed(fleet, [replace(row, epoch="new") for row in fleet.replicas])
    assert policy.rank(PROMPT, renewed, 10.0)[0].name == first.name
