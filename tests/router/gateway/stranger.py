"""stranger: a policy that ranks a replica that nobody has, in the place it is told."""

from __future__ import annotations

from pydantic import Field

from router.placement.ask import Ask, Choice, Ranking
from router.placement.view import FleetView
from router.settings import Options


class Config(Options):
    """Where the stranger stands."""

    place: int = Field(0, ge=0, le=1000, description="First, unless told otherwise.")


class Policy:
    """In the order of the view otherwise."""

    def __init__(self, config: Config) -> None:
        self._place = config.place

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank."""
        ranking = [Choice(name, epoch) for name, epoch in zip(fleet.names, fleet.epochs, strict=True)]
        ranking.insert(self._place, Choice("nobody", "nobody:0"))
        return ranking

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Learn nothing."""
