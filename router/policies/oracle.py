"""oracle: a yardstick of our own, no router's: the least time to first token, all caches and queues known.

Greedy: of each request alone the best, whatever comes after it. In a simulation it sees the truth of the
moment; in a live router only what digests and reports tell, which is less.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from router.placement.ask import Ask, Choice, LazyRanking, Ranking
from router.placement.policy import Sees
from router.placement.ring import tie_break
from router.placement.view import FleetView
from router.settings import Options


class Config(Options):
    """oracle has no options."""


class Policy:
    """Wait plus the prefill of what is not held, exactly; equals fall by hash."""

    sees: ClassVar[Sees] = "truth"

    def __init__(self, config: Config) -> None:
        pass

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank by time to first token, in seconds."""
        if not len(fleet):
            return ()
        # One token at least is always computed.
        held = np.clip(fleet.held_tokens(ask), 0, max(0, ask.prompt_tokens - 1))
        wait = fleet.wait_seconds(now)
        prefill = fleet.prefill_seconds(ask.prompt_tokens, held)
        score = wait + prefill

        def order(place: int) -> tuple[float, int]:
            return float(score[place]), -tie_break(ask.spread, fleet.names[place])

        def choice(place: int) -> Choice:
            return Choice(
                fleet.names[place],
                fleet.epochs[place],
                int(held[place]),
                float(wait[place]),
                float(prefill[place]),
                "held" if held[place] else "load",
                float(score[place]),
            )

        return LazyRanking.of(sorted(range(len(fleet)), key=order), choice)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Nothing to learn: all is known."""
