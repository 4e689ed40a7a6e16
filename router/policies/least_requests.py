"""least_requests: to the replica with the fewest requests in flight, as far as known; no affinity."""

from __future__ import annotations

from router.placement.ask import Ask, Choice, Ranking
from router.placement.ring import tie_break
from router.placement.view import FleetView
from router.settings import Options


class Config(Options):
    """least_requests has no options."""


class Policy:
    """Counts leases; equals are told apart by hash, never by their place in a list."""

    def __init__(self, config: Config) -> None:
        pass

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank by leases in flight."""
        replicas = sorted(
            fleet.replicas,
            key=lambda replica: (replica.load.in_flight, -tie_break(ask.spread, replica.name)),
        )
        return tuple(
            Choice(replica.name, replica.epoch, wait_seconds=replica.load.wait_seconds(now), reason="least")
            for replica in replicas
        )

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Nothing to learn: leases are counted by the fleet."""
