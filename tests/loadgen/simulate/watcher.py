"""watcher: a policy from outside: to the least wait, then by name; it tells what it saw as expected hits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from router.placement.ask import Ask, Choice, Ranking
from router.placement.view import FleetView
from router.settings import Options


class Config(Options):
    """What it tells."""

    tells: Literal["commits", "prefill", "wait", "replicas"] = Field(
        "commits", description="Its own commits so far, or milliseconds, or how many replicas there are."
    )
    reads_digests: bool = Field(False, description="Whether it asks what is held, if only to ask.")


class Policy:
    """Asks nothing but the view."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._commits = 0

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Return every replica, least wait first."""
        if self._config.reads_digests:
            fleet.held_tokens(ask)
        waits = fleet.wait_seconds(now).tolist()
        prefills = fleet.prefill_seconds(ask.prompt_tokens, 0).tolist()
        rows = sorted(zip(waits, fleet.names, fleet.epochs, prefills, strict=True))
        told = {"commits": self._commits, "replicas": len(fleet)}
        choices = []
        for wait, name, epoch, prefill in rows:
            seen = told | {"prefill": round(prefill * 1000), "wait": round(wait * 1000)}
            choices.append(Choice(name, epoch, seen[self._config.tells], wait, prefill))
        return choices

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Count."""
        self._commits += 1
