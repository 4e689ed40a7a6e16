"""Every policy in the folder keeps the contract."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from types import ModuleType
from typing import get_args

import pytest
from pydantic import BaseModel, ConfigDict

from router.placement.ask import Ask
from router.placement.policy import Policy, Sees
from router.placement.view import FleetView, LoadView
from router.policies import PolicyError, load_policy, policy_names
from tests.router.views import ask_for, digest_of, fleet_of, interleaved_chats, names_of

POLICIES = policy_names()


def _asks() -> list[Ask]:
    draw = random.Random(3)
    prompts = [[draw.randrange(99) for _ in range(draw.choice((1, 15, 16, 400, 3000)))] for _ in range(20)]
    unnamed = Ask("m", 500, b"spread", None)
    return [ask_for(prompt, session=b"session") for prompt in prompts] + [unnamed]


def test_the_known_policies_are_there() -> None:
    assert set(POLICIES) >= {
        "affinity",
        "cache_aware",
        "chwbl",
        "dual_map",
        "kv_overlap",
        "kvaware",
        "least_requests",
        "least_work",
        "oracle",
        "power_of_two",
        "prefix_ring",
        "prefixaware",
        "round_robin",
        "session_ring",
        "weighted_scorers",
    }


@pytest.mark.parametrize("name", POLICIES)
def test_it_ranks_each_replica_once_and_alike_each_time(name: str) -> None:
    policy = load_policy(name)
    for count in (1, 2, 7):
        fleet = fleet_of(names_of(count))
        for ask in _asks():
            ranking = policy.rank(ask, fleet, 100.0)
            assert sorted(choice.name for choice in ranking) == names_of(count)
            assert list(policy.rank(ask, fleet, 100.0)) == list(ranking)
            policy.commit(ask, ranking[0], 100.0)


@pytest.mark.parametrize("name", POLICIES)
def test_it_survives_an_empty_fleet_and_refuses_unknown_options(name: str) -> None:
    policy = load_policy(name)
    for ask in _asks():
        assert policy.rank(ask, fleet_of([]), 0.0) == ()
    with pytest.raises(PolicyError, match="no_such_option"):
        load_policy(name, {"no_such_option": 1})


@pytest.mark.parametrize("name", POLICIES)
def test_the_order_of_the_replicas_does_not_matter(name: str) -> None:
    names = names_of(5)
    shuffled = random.Random(1).sample(names, 5)
    one, other = load_policy(name), load_policy(name)
    for ask in _asks():
        first = one.rank(ask, fleet_of(names), 5.0)
        second = other.rank(ask, fleet_of(shuffled), 5.0)
        assert [choice.name for choice in first] == [choice.name for choice in second]
        one.commit(ask, first[0], 5.0)
        other.commit(ask, second[0], 5.0)


@pytest.mark.parametrize("name", POLICIES)
def test_prompts_without_a_key_spread_over_the_fleet(name: str) -> None:
    policy = load_policy(name)
    served = dict.fromkeys(names_of(4), 0)
    for number in range(400):
        ask = ask_for([number, 7, number])
        loads = {name: LoadView(dispatched=count) for name, count in served.items()}
        choice = policy.rank(ask, fleet_of(names_of(4), **loads), float(number))[0]
        policy.commit(ask, choice, float(number))
        served[choice.name] += 1
    assert max(served.values()) <= 1.3 * 100


@pytest.mark.parametrize("name", POLICIES)
def test_it_copes_with_replicas_that_vanish_start_anew_and_tell_nothing(name: str) -> None:
    policy = load_policy(name)
    whole = fleet_of(names_of(5))
    asks = _asks()
    for ask in asks:
        policy.commit(ask, policy.rank(ask, whole, 1.0)[0], 1.0)
    rows = list(whole.replicas)
    renewed = [replace(row, epoch="renewed") for row in rows]
    told = {"replica-0": digest_of(asks, "renewed"), "replica-3": digest_of(asks[:9], "replica-3:0")}
    for left in (rows[:2], rows[3:], [*renewed[:3], *rows[3:]], renewed[1:2]):
        fleet = FleetView.of(left, whole.ring, 5, {key: (digest, 1.0) for key, digest in told.items()})
        for ask in asks:
            ranking = policy.rank(ask, fleet, 2.0)
            assert sorted((one.name, one.epoch) for one in ranking) == [(row.name, row.epoch) for row in left]
            assert all(0 <= choice.expected_tokens < max(ask.prompt_tokens, 1) for choice in ranking)
            assert all(choice.wait_seconds >= 0 and choice.prefill_seconds >= 0 for choice in ranking)
            policy.commit(ask, ranking[-1], 2.0)


@pytest.mark.parametrize("name", POLICIES)
def test_what_a_simulation_may_show_it_is_known(name: str) -> None:
    assert getattr(load_policy(name), "sees", "reports") in get_args(Sees)


@pytest.mark.parametrize("name", ["affinity", "least_work", "oracle"])
def test_cold_prompts_avoid_a_busy_replica(name: str) -> None:
    policy = load_policy(name)
    loads = {"replica-0": LoadView(work_seconds=5.0, reported_at=0.0, waiting=50)}
    served = []
    for number in range(60):
        draw = random.Random(number)
        ask = ask_for([draw.randrange(50_000) for _ in range(400)])
        choice = policy.rank(ask, fleet_of(names_of(3), **loads), 0.0)[0]
        policy.commit(ask, choice, 0.0)
        served.append(choice.name)
    assert "replica-0" not in served


def test_a_dotted_name_loads_somebody_elses_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Config(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid")
        mark: str = "x"

    class Theirs:
        def __init__(self, config: Config) -> None:
            self.mark = config.mark

    module = ModuleType("their.policy")
    module.Config, module.Policy = Config, Theirs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their.policy", module)
    policy: Policy = load_policy("their.policy", {"mark": "y"})
    assert isinstance(policy, Theirs)
    assert policy.mark == "y"
    with pytest.raises(PolicyError, match="cannot import"):
        load_policy("not.there")
    with pytest.raises(PolicyError, match="known: affinity"):
        load_policy("no_such_policy")


@pytest.mark.parametrize("name", POLICIES)
def test_ranking_is_pure(name: str) -> None:
    """Asking, however often, changes no later answer; only commits do."""
    asked, silent = load_policy(name), load_policy(name)
    fleet = fleet_of(names_of(4))
    for turn in interleaved_chats(10, 4, 100, seed=5):
        for _ in range(3):
            asked.rank(ask_for([1, 2, 3] * 50), fleet, 1.0)
        first, second = asked.rank(turn.ask, fleet, 1.0), silent.rank(turn.ask, fleet, 1.0)
        assert list(first) == list(second)
        asked.commit(turn.ask, first[0], 1.0)
        silent.commit(turn.ask, second[0], 1.0)
