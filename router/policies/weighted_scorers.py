"""weighted_scorers: llm-d's scheduler: prefix, queue and KV usage, each scored 0 to 1, weighed 3 : 2 : 2.

Sources: llm-d/llm-d-inference-scheduler, pkg/plugins/scorer/{precise_prefix_cache,utils}.go;
kubernetes-sigs/gateway-api-inference-extension, pkg/epp/scheduling/framework/plugins (queue-scorer,
kv-cache-utilization-scorer, prefix-cache-scorer, max-score-picker); the weights are those of llm-d's guides.
Queue and KV usage are what replicas last reported, and no router adds what it has sent since. Equal sums are
drawn by chance there, by hash here.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from router.placement.ask import Ask, Choice, LazyRanking, Ranking
from router.placement.policy import Sees
from router.placement.ring import tie_break
from router.placement.view import Column, FleetView, Floats, Tokens
from router.settings import Options


class Config(Options):
    """Options of weighted_scorers; defaults are those of llm-d's guides."""

    prefix_weight: float = Field(3, ge=0, le=1000, description="Weight of the prefix score; llm-d's guides.")
    queue_weight: float = Field(2, ge=0, le=1000, description="Weight of the queue score; llm-d's guides.")
    usage_weight: float = Field(2, ge=0, le=1000, description="Weight of free KV blocks; llm-d's guides.")
    prefix_score: Literal["prompt", "holders"] = Field(
        "prompt",
        description="The held share of the prompt, as the prefix-cache-scorer counts; or, as the precise"
        " scorer does, where a replica stands between the least and the most that any holder holds.",
    )


class Policy:
    """The largest weighted sum wins."""

    sees: ClassVar[Sees] = "caches"

    def __init__(self, config: Config) -> None:
        self._config = config

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank by the weighted sum of scores."""
        if not len(fleet):
            return ()
        config = self._config
        held = np.maximum(fleet.held_tokens(ask), 0)
        waiting = fleet.table[Column.WAITING]
        free = 1 - fleet.table[Column.KV_USAGE]
        total: Floats = config.prefix_weight * self._prefix_scores(ask, held)
        total = total + config.queue_weight * _shortest(waiting) + config.usage_weight * free
        wait = fleet.wait_seconds(now)
        # One token at least is always computed.
        expected = np.minimum(held, max(0, ask.prompt_tokens - 1))
        prefill = fleet.prefill_seconds(ask.prompt_tokens, expected)

        def order(place: int) -> tuple[float, int]:
            return -float(total[place]), -tie_break(ask.spread, fleet.names[place])

        def choice(place: int) -> Choice:
            return Choice(
                fleet.names[place],
                fleet.epochs[place],
                int(expected[place]),
                float(wait[place]),
                float(prefill[place]),
                "prefix" if held[place] else "load",
                -float(total[place]),
            )

        return LazyRanking.of(sorted(range(len(fleet)), key=order), choice)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Nothing to learn: replicas tell it all."""

    def _prefix_scores(self, ask: Ask, held: Tokens) -> Floats:
        """Return the prefix score of each replica."""
        if self._config.prefix_score == "prompt":
            return held / max(1, ask.prompt_tokens)
        holders = held[held > 0]
        if not len(holders):
            return np.zeros(len(held))
        least, most = int(holders.min()), int(holders.max())
        if least == most:
            return (held > 0).astype(np.float64)
        return np.maximum(held - least, 0) / (most - least)


def _shortest(waiting: Floats) -> Floats:
    """Return 1 for the shortest queue, 0 for the longest, evenly between; 1 where all are as long."""
    least, most = float(waiting.min()), float(waiting.max())
    if least == most:
        return np.ones(len(waiting))
    return (most - waiting) / (most - least)
