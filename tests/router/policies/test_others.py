"""The plain policies, each by what it is for."""

from __future__ import annotations

from collections import Counter

from router.placement.view import LoadView
from router.policies import load_policy
from tests.router.views import ask_for, fleet_of, interleaved_chats, names_of


def test_round_robin_goes_round() -> None:
    policy = load_policy("round_robin")
    served: list[str] = []
    for number in range(6):
        loads = {name: LoadView(dispatched=served.count(name)) for name in names_of(3)}
        served.append(policy.rank(ask_for([number]), fleet_of(names_of(3), **loads), 0.0)[0].name)
    assert served == names_of(3) * 2


def test_least_requests_counts_leases() -> None:
    loads = {name: LoadView(in_flight=count) for name, count in zip(names_of(3), (4, 1, 2), strict=True)}
    ranking = load_policy("least_requests").rank(ask_for([1]), fleet_of(names_of(3), **loads), 0.0)
    assert [choice.name for choice in ranking] == ["replica-1", "replica-2", "replica-0"]


def test_least_work_goes_by_seconds_not_by_requests() -> None:
    loads = {
        "replica-0": LoadView(in_flight=9, work_seconds=0.1),
        "replica-1": LoadView(in_flight=1, work_seconds=5),
    }
    ranking = load_policy("least_work").rank(ask_for([1]), fleet_of(names_of(2), **loads), 0.0)
    assert ranking[0].name == "replica-0"


def test_session_ring_goes_by_the_session_alone() -> None:
    policy = load_policy("session_ring")
    fleet = fleet_of(names_of(8))
    homes = {policy.rank(ask_for([number] * 40, session=b"s1"), fleet, 0.0)[0].name for number in range(20)}
    assert len(homes) == 1
    spread = Counter(
        policy.rank(ask_for([1] * 40, session=f"s{number}".encode()), fleet, 0.0)[0].name
        for number in range(400)
    )
    assert len(spread) == 8
    assert max(spread.values()) <= 2 * 400 / 8


def test_prefix_ring_keeps_prefixes_together_within_its_bound() -> None:
    policy = load_policy("prefix_ring", {"prefix_tokens": 304})
    turns = list(interleaved_chats(20, 3, 50))
    in_flight = dict.fromkeys(names_of(4), 0)
    homes: Counter[str] = Counter()
    for turn in turns:
        loads = {name: LoadView(in_flight=count) for name, count in in_flight.items()}
        choice = policy.rank(turn.ask, fleet_of(names_of(4), **loads), 0.0)[0]
        in_flight[choice.name] += 1
        homes[choice.name] += 1
        assert in_flight[choice.name] <= -(-1.25 * sum(in_flight.values()) // 4)
    # Idle, all of one system prompt share one home.
    idle = {policy.rank(turn.ask, fleet_of(names_of(4)), 0.0)[0].name for turn in turns}
    assert len(idle) == 1
