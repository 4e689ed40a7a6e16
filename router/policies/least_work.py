"""least_work: to the replica where a prefill would begin soonest, in seconds; no affinity."""

from __future__ import annotations

from pydantic import Field

from router.placement.ask import Ask, Choice, Ranking
from router.placement.ring import tie_break
from router.placement.view import FleetView, ReplicaView
from router.settings import Options


class Config(Options):
    """Options of least_work."""

    near_tie_seconds: float = Field(
        0.020, ge=0, le=10, description="Waits closer than this are equal: a report is never more exact."
    )


class Policy:
    """Weighs waiting and computing alike in seconds; near-ties fall by hash, lest routers herd."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank by wait plus an uncached prefill."""
        if not fleet.replicas:
            return ()

        def seconds(replica: ReplicaView) -> float:
            return replica.load.wait_seconds(now) + replica.prefill.seconds(ask.prompt_tokens, 0)

        least = min(map(seconds, fleet.replicas))

        def order(replica: ReplicaView) -> tuple[float, int, int]:
            total = seconds(replica)
            near = total <= least + self._config.near_tie_seconds
            return (least if near else total, replica.load.in_flight, -tie_break(ask.spread, replica.name))

        return tuple(
            Choice(
                replica.name,
                replica.epoch,
                wait_seconds=replica.load.wait_seconds(now),
                prefill_seconds=replica.prefill.seconds(ask.prompt_tokens, 0),
                reason="least",
            )
            for replica in sorted(fleet.replicas, key=order)
        )

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Nothing to learn: work is counted by the fleet."""
