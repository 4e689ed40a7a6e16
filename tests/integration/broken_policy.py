"""A policy that fails whenever it is asked, for whoever must live with one."""

from __future__ import annotations

from router.placement.ask import Ask, Choice, Ranking
from router.placement.view import FleetView
from router.settings import Options


class Config(Options):
    """No options."""


class Policy:
    """Fails."""

    def __init__(self, config: Config) -> None:
        pass

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Fail."""
        raise RuntimeError("this policy is broken")

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Never called: nothing was ranked."""
