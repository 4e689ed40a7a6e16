"""oracle: the least time to first token, of what is held and what waits."""

from __future__ import annotations

import random

from router.placement.view import LoadView
from router.policies import load_policy
from router.wire.report import PrefillCost
from tests.router.views import ask_for, changed, digest_of, fleet_of, names_of

PROMPT = ask_for(random.Random(0).choices(range(50_000), k=8005))


def test_it_weighs_what_is_held_against_the_wait() -> None:
    saved = PrefillCost().seconds(8005, 0) - PrefillCost().seconds(8005, 7680)
    for wait, first in ((saved - 0.01, "replica-1"), (saved + 0.01, "replica-0")):
        loads = {"replica-1": LoadView(work_seconds=wait, reported_at=3.0)}
        digests = {"replica-1": digest_of([PROMPT], "replica-1:0")}
        fleet = changed(fleet_of(names_of(2), **loads), digests=digests, at=3.0)
        best = load_policy("oracle").rank(PROMPT, fleet, 3.0)[0]
        assert best.name == first
        assert best.expected_tokens == (7680 if first == "replica-1" else 0)
        assert abs(best.score - (best.wait_seconds + best.prefill_seconds)) < 1e-9


def test_it_is_shown_the_truth_and_equals_fall_by_hash() -> None:
    policy = load_policy("oracle")
    assert getattr(policy, "sees", None) == "truth"
    asks = [ask_for([number] * 40) for number in range(200)]
    served = {policy.rank(ask, fleet_of(names_of(4)), 0.0)[0].name for ask in asks}
    assert served == set(names_of(4))
