"""Shadows rank a fair sample of conversations, learn for themselves, and cannot disturb anything."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest

from router.observe.course import Course
from router.observe.metrics import RouterMetrics
from router.observe.shadow import Shadow, Shadows, conversation_of
from router.placement.ask import Ask, Choice, Ranking
from router.placement.policy import Policy
from router.placement.view import FleetView
from router.policies import load_policy
from tests.router.views import ask_for, fleet_of, interleaved_chats, names_of


class Exploding:
    """Fails at whatever it is asked; or answers nonsense."""

    def __init__(self, where: str) -> None:
        self.where = where

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        if self.where == "rank":
            raise RuntimeError("no")
        if self.where == "table":
            fleet.table[:] = 0
        if self.where == "nobody":
            return ()
        name = "who?" if self.where == "name" else fleet.names[0]
        return (Choice(name, f"{name}:0"),)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        raise RuntimeError("no")


class Recording:
    """Always the replica named; keeps what it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.committed: list[str] = []

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        return (Choice(self.name, f"{self.name}:0"),)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        self.committed.append(choice.name)


def shadow(name: str, policy: Policy, share: float = 1.0) -> Shadow:
    return Shadow(name, name, policy, share, RouterMetrics())


def drive(shadows: Shadows, asks: list[Ask], acting: Policy, fleet: FleetView) -> None:
    for number, ask in enumerate(asks):
        now = float(number)
        first = acting.rank(ask, fleet, now)[0]
        choices = shadows.rank(ask, fleet, now) if shadows.sampled(ask) else {}
        acting.commit(ask, first, now)
        shadows.accepted(ask, choices, first, first, now)


def asks_of(conversations: int, turns: int) -> list[Ask]:
    return [turn.ask for turn in interleaved_chats(conversations, turns, 120)]


def test_the_same_policy_agrees_and_round_robin_would_hit_less() -> None:
    twin, naive = shadow("twin", load_policy("affinity")), shadow("naive", load_policy("round_robin"))
    fleet = fleet_of(names_of(8))
    drive(Shadows([twin, naive]), asks_of(20, 6), load_policy("affinity"), fleet)
    assert twin.ranked == naive.ranked == 120
    assert twin.agreed == 120
    same, other = twin.report()["courses"], naive.report()["courses"]
    assert same["shadow"] == same["acting"]
    # Nothing is dispatched here, so round robin's turn never passes: all is hit, all on one replica.
    assert other["shadow"]["busiest_share"] == 1.0
    assert other["acting"]["busiest_share"] < 0.6


def test_a_shadow_learns_from_its_own_choices_and_the_acting_policy_from_its_own() -> None:
    own, acting = Recording("replica-1"), Recording("replica-0")
    one = shadow("one", own)
    drive(Shadows([one]), asks_of(3, 2), acting, fleet_of(names_of(2)))
    assert (set(own.committed), set(acting.committed)) == ({"replica-1"}, {"replica-0"})
    assert one.report()["agreement"] == 0.0


@pytest.mark.parametrize("where", ["rank", "commit", "table", "nobody", "name"])
def test_one_that_fails_is_counted_and_disturbs_no_other(where: str) -> None:
    bad, good = shadow("bad", Exploding(where)), shadow("good", Recording("replica-0"))
    fleet = fleet_of(names_of(2))
    table = fleet.table.copy()
    drive(Shadows([bad, good]), asks_of(3, 2), Recording("replica-0"), fleet)
    assert (bad.errors, bad.ranked) == (6, 0)
    assert (good.errors, good.ranked) == (0, 6)
    assert np.array_equal(fleet.table, table)


def test_whole_conversations_are_sampled_and_about_as_many_as_asked() -> None:
    some = Shadows([shadow("some", Recording("replica-0"), 0.2)])
    seen: dict[int, set[bool]] = defaultdict(set)
    for turn in interleaved_chats(300, 3, 120):
        seen[turn.conversation].add(some.sampled(turn.ask))
    assert all(len(one) == 1 for one in seen.values())
    assert 0.1 < sum(True in one for one in seen.values()) / 300 < 0.3


def test_a_session_is_one_conversation_whatever_its_prompts() -> None:
    draw = random.Random(1)
    prompts = [[draw.randrange(50_000) for _ in range(80)] for _ in range(5)]
    assert len({conversation_of(ask_for(one, session=b"s")) for one in prompts}) == 1
    assert len({conversation_of(ask_for(one)) for one in prompts}) == 5
    assert conversation_of(Ask("m", 10, b"a")) != conversation_of(Ask("m", 10, b"b"))


def test_a_slow_shadow_skips_and_the_others_do_not() -> None:
    now = [0.0]

    class Slow(Recording):
        def rank(self, ask: Ask, fleet: FleetView, moment: float) -> Ranking:
            now[0] += 0.1
            return super().rank(ask, fleet, moment)

    slow, quick = shadow("slow", Slow("replica-0")), shadow("quick", Recording("replica-0"))
    shadows = Shadows([slow, quick], clock=lambda: now[0])
    drive(shadows, asks_of(10, 10), Recording("replica-0"), fleet_of(names_of(2)))
    assert (slow.ranked, slow.skipped) == (3, 97)
    assert (quick.ranked, quick.skipped) == (100, 0)
    # A part of the time is its own.
    now[0] += 1000.0
    drive(shadows, asks_of(1, 1), Recording("replica-0"), fleet_of(names_of(2)))
    assert slow.ranked == 4


def test_a_course_counts_hits_work_and_moves() -> None:
    draw = random.Random(1)
    tokens = [draw.randrange(50_000) for _ in range(320)]
    course, ask = Course(), ask_for(tokens)
    a, b = Choice("a", "a:0"), Choice("b", "b:0")
    assert course.take(ask, a, 1) == (0, False)
    # All but the last block, of which a token is computed.
    assert course.take(ask, a, 1) == (304, False)
    assert course.take(ask, b, 1) == (0, True)
    assert course.take(ask, Choice("a", "a:1"), 1) == (0, True)
    assert course.report() == {
        "hit_ratio": 304 / 1280,
        "busiest_share": (320 + 16 + 320) / (1280 - 304),
        "moved_share": 2 / 3,
    }
    assert course.take(Ask("m", 40, b"spread"), a, 2) == (0, False)
