"""affinity ranks as its formulas do over arrays, whatever the fleet, its load and its digests."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.placement.ask import Ask
from router.placement.ring import Ring
from router.placement.view import FleetView, LoadView, ReplicaView
from router.policies.affinity import Config, Policy
from router.wire.report import PrefillCost
from tests.router.policies.affinity_arrays import ArrayAffinity
from tests.router.views import ask_for, digest_of, names_of


class Traffic:
    """Chats that begin alike, or not, and go on."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self._systems = [self._tokens(draw.choice((0, 100, 700, 2500))) for _ in range(3)]
        self._chats: list[list[int]] = []
        self.asked: list[Ask] = []

    def ask(self) -> Ask:
        draw = self._draw
        if not self._chats or draw.random() < 0.4:
            self._chats.append(list(draw.choice(self._systems)))
        chat = draw.choice(self._chats)
        chat += self._tokens(draw.choice((3, 16, 60, 400)))
        preamble = draw.choice((0, 0, 96, 640))
        ask = ask_for(chat, preamble if preamble < len(chat) else 0)
        self.asked.append(ask)
        return Ask("m", 40, b"spread %d" % draw.randrange(9)) if draw.random() < 0.05 else ask

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(50_000) for _ in range(count)]


def fleet_of(draw: Random, asked: list[Ask], busy: float, tell: float, now: float) -> FleetView:
    """Some of a fleet, each with a load, a price and a digest of its own, or idle, equal and silent."""
    names = names_of(draw.choice((1, 2, 4, 7, 20, 40)))
    alike = draw.random() < 0.5
    replicas = []
    for name in names:
        load = LoadView()
        if draw.random() < busy:
            work, own = draw.choice((0.0, 0.01, 0.3)) * draw.random(), draw.choice((0.0, 0.02, 0.5))
            counts = [draw.randrange(6) for _ in range(5)]
            load = LoadView(work, now - draw.random() * 0.05, own * draw.random(), *counts)
        cost = PrefillCost() if alike else PrefillCost(0.01 * draw.random(), 1e-4 * draw.random(), 3e-9)
        replicas.append(ReplicaView(name, f"{name}:{draw.randrange(20) // 19}", load, cost))
    digests = {
        one.name: (digest_of(draw.sample(asked, len(asked) // 2), one.epoch), now - 40 * draw.random() ** 3)
        for one in replicas
        if draw.random() < tell
    }
    there = [one for one in replicas if draw.random() < 0.9] or replicas
    return FleetView.of(there, Ring(names), len(names), digests)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    busy=st.sampled_from((0.0, 0.3, 1.0)),
    tell=st.sampled_from((0.0, 0.5, 1.0)),
    use_digests=st.booleans(),
    least_conversations=st.sampled_from((1, 4)),
)
def test_it_ranks_as_the_formulas_do(
    seed: int, busy: float, tell: float, use_digests: bool, least_conversations: int
) -> None:
    draw = Random(seed)
    traffic = Traffic(draw)
    config = Config(use_digests=use_digests, least_conversations=least_conversations)
    policy, oracle = Policy(config), ArrayAffinity(config)
    now = 100.0
    for _ in range(15):
        now += draw.choice((0.0, 0.01, 3.0))
        fleet = fleet_of(draw, traffic.asked, busy, tell, now)
        ask = traffic.ask()
        ranking, formulas = policy.rank(ask, fleet, now), oracle.rank(ask, fleet, now)
        first, ranked = ranking[0], list(ranking)
        assert first == ranked[0]
        assert [(one.name, one.expected_tokens, one.reason) for one in ranked] == [
            (one.name, one.expected_tokens, one.reason) for one in formulas
        ]
        for one, other in zip(ranked, formulas, strict=True):
            assert one[3:5] == pytest.approx(other[3:5], abs=1e-12)
            assert one.score == pytest.approx(other.score, abs=1e-12)
        taken = draw.choice(ranked[:3])
        policy.commit(ask, taken, now)
        oracle.commit(ask, taken, now)
