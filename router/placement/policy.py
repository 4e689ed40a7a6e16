"""Policy: who ranks replicas for an ask."""

from __future__ import annotations

from typing import Literal, Protocol

from router.placement.ask import Ask, Choice, Ranking
from router.placement.view import FleetView

# What a simulation shows a policy: what a router would see (load reports and digests, both of some age), or
# instead the caches as they are, or caches and load as they are at that moment.
Sees = Literal["reports", "caches", "truth"]


class Policy(Protocol):
    """Ranks replicas. `rank` changes nothing and asks no clock; `commit` learns from a real dispatch.

    A policy may have an attribute `sees` (see Sees); without, it sees what a router sees.
    """

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank every replica of the view once; empty for an empty fleet."""

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Note that `ask` was served by `choice`: once for each request that a replica accepted."""
