"""round_robin: each request to the next replica. Knows nothing; the yardstick for all others."""

from __future__ import annotations

from router.placement.ask import Ask, Choice, Ranking
from router.placement.view import FleetView
from router.settings import Options


class Config(Options):
    """round_robin has no options."""


class Policy:
    """Goes round the replicas in the order of their names.

    Whose turn it is follows from how many requests were dispatched, so that requests which arrive at once
    take different turns though none has been answered yet.
    """

    def __init__(self, config: Config) -> None:
        pass

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank by turn."""
        replicas = sorted(fleet.replicas, key=lambda replica: replica.name)
        dispatched = sum(replica.load.dispatched for replica in replicas)
        turn = dispatched % len(replicas) if replicas else 0
        return tuple(
            Choice(replica.name, replica.epoch, wait_seconds=replica.load.wait_seconds(now), reason="turn")
            for replica in replicas[turn:] + replicas[:turn]
        )

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Nothing to learn: dispatches are counted by the fleet."""
