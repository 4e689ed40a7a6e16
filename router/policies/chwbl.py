"""chwbl: KubeAI's `PrefixHash`: consistent hashing of a prompt's first characters, with bounded loads.

Source: substratusai/kubeai, internal/loadbalancer/balance_chwbl.go and api/k8s/v1/model_types.go (defaults);
after Mirrokni, Thorup, Zadimoghaddam: Consistent Hashing with Bounded Loads (2016). A replica is passed over
where one request more would exceed the mean in flight by the bound; where all would, as in a nearly idle
fleet, the first on the ring takes it. `prefix_ring` rounds that bound up instead.

KubeAI hashes the first 100 characters of the first user message: 25 tokens at four characters each, behind
the preamble, and here with it, as names stand for whole prefixes. Its ring has 256 points a replica and
hashes by xxhash; the fleet's own stands for it.
"""

from __future__ import annotations

from pydantic import Field

from router.placement.ask import Ask, Choice, LazyRanking, Ranking
from router.placement.view import Column, FleetView
from router.settings import Options

_CHARACTERS_PER_TOKEN = 4


class Config(Options):
    """Options of chwbl, under KubeAI's names with units; defaults are KubeAI's."""

    prefix_characters: int = Field(
        100, ge=1, le=1_000_000, description="The key: that much of the first user message; KubeAI's default."
    )
    mean_load_percent: int = Field(
        125,
        ge=100,
        le=1000,
        description="Most requests in flight on a replica, of the mean; KubeAI's default, as papers advise.",
    )


class Policy:
    """Walks the ring from the prefix's home to the first replica under the bound."""

    def __init__(self, config: Config) -> None:
        self._prefix_tokens = max(1, config.prefix_characters // _CHARACTERS_PER_TOKEN)
        self._factor = config.mean_load_percent / 100

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank the replicas under the bound in ring order, then the others in ring order."""
        if not len(fleet):
            return ()
        in_flight = fleet.table[Column.IN_FLIGHT]
        total = float(in_flight.sum())
        bound = self._factor * (total + 1) / len(fleet)
        over = (in_flight + 1 > bound) & (total > 0)
        places = fleet.places
        walk = [places[name] for name in fleet.ring.walk(self._key(ask)) if name in places]
        wait = fleet.wait_seconds(now)
        prefill = fleet.prefill_seconds(ask.prompt_tokens, 0)

        def choice(place: int) -> Choice:
            return Choice(
                fleet.names[place],
                fleet.epochs[place],
                wait_seconds=float(wait[place]),
                prefill_seconds=float(prefill[place]),
                reason="over bound" if over[place] else "prefix",
                score=float(walk.index(place)),
            )

        return LazyRanking.of(sorted(walk, key=lambda place: bool(over[place])), choice)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Nothing to learn: the ring and the leases are all there is."""

    def _key(self, ask: Ask) -> bytes:
        """Return the name of the last block that lies wholly within the prefix, the first at least."""
        if ask.chain is None:
            return ask.spread
        return ask.key_at((ask.chain.preamble_tokens + self._prefix_tokens) // ask.chain.block_tokens)
