"""broken: a policy that fails when it is asked."""

from __future__ import annotations

from router.placement.ask import Ask, Choice, Ranking
from router.placement.view import FleetView
from router.settings import Options


class Config(Options):
    """None."""


class Policy:
    """Divides by zero."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Fail."""
        raise ZeroDivisionError("as told")

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Never called."""
