"""prefix_ring: the ring by the prompt's beginning, with bounded load (CHWBL).

Mirrokni, Thorup, Zadimoghaddam: Consistent Hashing with Bounded Loads (2016): a replica takes at most
`load_bound` times the mean of requests in flight; what is above walks on along the ring. Counted are the
requests of all routers, as far as they are known: otherwise each would fill a replica to the bound.
"""

from __future__ import annotations

from math import ceil

from pydantic import Field

from router.placement.ask import Ask, Choice, Ranking
from router.placement.view import FleetView
from router.settings import Options


class Config(Options):
    """Options of prefix_ring."""

    prefix_tokens: int = Field(
        256,
        ge=1,
        le=1_000_000,
        description="The key is this much of the prompt; 256, as public APIs bucket their prompt caches.",
    )
    load_bound: float = Field(
        1.25, ge=1, le=10, description="Most requests in flight on a replica, as a multiple of the mean."
    )


class Policy:
    """Walks the ring from the prefix's home past replicas that are full by the bound."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank the replicas under the bound in ring order, then the others in ring order."""
        views = {replica.name: replica for replica in fleet.replicas}
        if not views:
            return ()
        total = 1 + sum(replica.load.known_requests for replica in fleet.replicas)
        bound = ceil(self._config.load_bound * total / len(views))
        block_tokens = ask.chain.block_tokens if ask.chain else 1
        key = ask.key_at(self._config.prefix_tokens // block_tokens)
        order = [views[name] for name in fleet.ring.walk(key) if name in views]
        order.sort(key=lambda replica: replica.load.known_requests + 1 > bound)
        return tuple(
            Choice(
                replica.name,
                replica.epoch,
                wait_seconds=replica.load.wait_seconds(now),
                reason="prefix" if replica.load.known_requests + 1 <= bound else "over bound",
            )
            for replica in order
        )

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Nothing to learn: the ring and the leases are all there is."""
