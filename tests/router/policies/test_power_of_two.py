"""power_of_two: of two drawn at random, the one with less in flight."""

from __future__ import annotations

from collections import Counter

from router.placement.view import LoadView
from router.policies import load_policy
from tests.router.views import ask_for, fleet_of, names_of


def test_the_busiest_gets_nothing_and_the_idlest_two_draws_in_n() -> None:
    policy = load_policy("power_of_two")
    loads = {name: LoadView(in_flight=number) for number, name in enumerate(names_of(4))}
    fleet = fleet_of(names_of(4), **loads)
    served = Counter(policy.rank(ask_for([number]), fleet, 0.0)[0].name for number in range(2000))
    # Of the six pairs, the idlest wins three, the next two, then one.
    assert served["replica-3"] == 0
    for name, share in (("replica-0", 3 / 6), ("replica-1", 2 / 6), ("replica-2", 1 / 6)):
        assert abs(served[name] / 2000 - share) < 0.05


def test_what_is_drawn_goes_by_the_request_alone() -> None:
    policy = load_policy("power_of_two")
    busy = fleet_of(names_of(6), **{name: LoadView(in_flight=9) for name in names_of(6)})
    for number in range(20):
        idle = policy.rank(ask_for([number]), fleet_of(names_of(6)), 0.0)
        assert [one.name for one in policy.rank(ask_for([number]), busy, 0.0)] == [one.name for one in idle]
        first, second = idle[0].name, idle[1].name
        turned = fleet_of(names_of(6), **{first: LoadView(in_flight=1)})
        assert [one.name for one in policy.rank(ask_for([number]), turned, 0.0)][:2] == [second, first]
