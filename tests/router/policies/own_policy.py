"""own_policy: the example of the README: to where the most of a prompt is held, among those not too busy."""

from __future__ import annotations

from pydantic import Field

from router.placement.ask import Ask, Choice, Ranking
from router.placement.ring import tie_break
from router.placement.view import FleetView
from router.settings import Options


class Config(Options):
    """Options come from the settings file; anything else in it is refused."""

    most_wait_seconds: float = Field(
        1.0, ge=0, description="Longer queues cost more than a cached prompt saves."
    )


class Policy:
    """`rank` must not change anything; what is learned of a request is learned in `commit`."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Return every replica once, best first."""
        ranked = []
        for replica, held in zip(fleet.replicas, fleet.held_tokens(ask).tolist(), strict=True):
            held = max(held, 0)  # -1: this replica tells nothing of its cache
            wait = replica.load.wait_seconds(now)
            busy = wait > self._config.most_wait_seconds
            score = (wait if busy else -held, -tie_break(ask.spread, replica.name))
            prefill = replica.prefill.seconds(ask.prompt_tokens, held)
            ranked.append((busy, score, Choice(replica.name, replica.epoch, held, wait, prefill, "held")))
        return tuple(choice for _, _, choice in sorted(ranked, key=lambda one: one[:2]))

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Nothing to learn."""
