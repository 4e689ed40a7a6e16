"""kv_overlap: tokens to prefill, less what is held, plus the tokens of all that is active."""

from __future__ import annotations

import random

from router.placement.view import LoadView
from router.policies import load_policy
from tests.router.views import ask_for, changed, digest_of, fleet_of, names_of

DRAW = random.Random(0)
PROMPT = ask_for(DRAW.choices(range(50_000), k=1024))


def test_what_is_held_is_weighed_against_what_is_active() -> None:
    digests = {"replica-0": digest_of([PROMPT], "replica-0:0")}
    for active, first in ((1000, "replica-0"), (1050, "replica-1")):
        loads = {"replica-0": LoadView(in_flight=1, in_flight_tokens=active)}
        fleet = changed(fleet_of(names_of(2), **loads), digests=digests)
        assert load_policy("kv_overlap").rank(PROMPT, fleet, 0.0)[0].name == first
        assert (
            load_policy("kv_overlap", {"overlap_weight": 0}).rank(PROMPT, fleet, 0.0)[0].name == "replica-1"
        )
    twice = load_policy("kv_overlap", {"overlap_weight": 2})
    assert twice.rank(PROMPT, fleet, 0.0)[0].name == "replica-0"


def test_only_what_this_router_has_under_way_is_load() -> None:
    loads = {"replica-0": LoadView(work_seconds=99.0, waiting=50, running=64, kv_usage=1.0)}
    fleet = changed(fleet_of(names_of(2), **loads), digests={"replica-0": digest_of([PROMPT], "replica-0:0")})
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
