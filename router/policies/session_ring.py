"""session_ring: the ring by session id, and by the prompt's first block where a client sends none."""

from __future__ import annotations

from router.placement.ask import Ask, Choice, Ranking
from router.placement.view import FleetView
from router.settings import Options


class Config(Options):
    """session_ring has no options; which header holds the session id is the gateway's."""


class Policy:
    """Sticks to the ring whatever the load: the simplest stickiness, and its cost."""

    def __init__(self, config: Config) -> None:
        pass

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank in ring order from the session's home."""
        views = {replica.name: replica for replica in fleet.replicas}
        key = ask.session if ask.session is not None else ask.key_at(1)
        return tuple(
            Choice(name, views[name].epoch, wait_seconds=views[name].load.wait_seconds(now), reason="session")
            for name in fleet.ring.walk(key)
            if name in views
        )

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Nothing to learn: the ring is all there is."""
