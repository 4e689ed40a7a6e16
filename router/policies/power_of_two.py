"""power_of_two: SGLang's router, policy `power_of_two`: of two at random, the one with less in flight.

Source: sgl-project/sglang, sgl-router/src/policies/power_of_two.rs; the idea is Mitzenmacher's, The Power of
Two Choices in Randomized Load Balancing (1996). Chance is a hash of the request's own key here, so that the
same ask and view give the same ranking. Knows nothing of caches.
"""

from __future__ import annotations

from router.placement.ask import Ask, Choice, LazyRanking, Ranking
from router.placement.ring import tie_break
from router.placement.view import Column, FleetView
from router.settings import Options


class Config(Options):
    """power_of_two has no options."""


class Policy:
    """Draws two by hash, compares leases, and keeps the others in the order drawn."""

    def __init__(self, config: Config) -> None:
        pass

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank the two drawn first by leases in flight, and after them all others as drawn."""
        if not len(fleet):
            return ()
        in_flight = fleet.table[Column.IN_FLIGHT]
        drawn = sorted(range(len(fleet)), key=lambda place: -tie_break(ask.spread, fleet.names[place]))
        pair, others = drawn[:2], drawn[2:]
        wait = fleet.wait_seconds(now)
        prefill = fleet.prefill_seconds(ask.prompt_tokens, 0)

        def choice(place: int) -> Choice:
            return Choice(
                fleet.names[place],
                fleet.epochs[place],
                wait_seconds=float(wait[place]),
                prefill_seconds=float(prefill[place]),
                reason="drawn" if place in pair else "rest",
                score=float(in_flight[place]),
            )

        return LazyRanking.of([*sorted(pair, key=lambda place: float(in_flight[place])), *others], choice)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Nothing to learn: leases are counted by the fleet."""
