"""kv_overlap: NVIDIA Dynamo's KV router: blocks to prefill, less what is held, plus blocks to decode with.

Source: ai-dynamo/dynamo, lib/kv-router/src/scheduling/{selector,config}.rs and src/sequences (formerly
lib/llm/src/kv_router): cost = weight * (prefill tokens under way + prompt - held) / block + active blocks.
Load is what this router itself has under way, as its routers share nothing by default: prefill tokens until
the first token, and the blocks of all requests until they end. At temperature 0, the default, the least cost
wins; equals are drawn by chance there, by hash here.

No policy is told of a first token: a prefill counts until it was predicted to end. Dynamo counts a block that
several active requests share once; here each request's prompt counts whole.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

import numpy as np
from pydantic import Field

from router.placement.ask import Ask, Choice, LazyRanking, Ranking
from router.placement.policy import Sees
from router.placement.ring import tie_break
from router.placement.view import Column, FleetView
from router.settings import Options

# Prefills of one router on one replica that may be under way; beyond, the oldest count no more.
_MOST_PREFILLS = 1024


class Config(Options):
    """Options of kv_overlap; defaults are Dynamo's."""

    overlap_weight: float = Field(
        1, ge=0, le=100, description="Weight of prefill against decode; --router-kv-overlap-score-weight."
    )


class Policy:
    """Costs in tokens: in blocks, whatever their size, the order is the same."""

    sees: ClassVar[Sees] = "caches"

    def __init__(self, config: Config) -> None:
        self._config = config
        self._prefills: dict[str, deque[tuple[float, int]]] = {}

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank by cost, in tokens."""
        if not len(fleet):
            return ()
        held = np.maximum(fleet.held_tokens(ask), 0)
        under_way = np.array([self._under_way(name, now) for name in fleet.names], dtype=np.float64)
        to_prefill = under_way + np.maximum(ask.prompt_tokens - held, 0)
        active = fleet.table[Column.IN_FLIGHT_TOKENS] + ask.prompt_tokens
        cost = self._config.overlap_weight * to_prefill + active
        wait = fleet.wait_seconds(now)
        prefill = fleet.prefill_seconds(ask.prompt_tokens, held)

        def order(place: int) -> tuple[float, int]:
            return float(cost[place]), -tie_break(ask.spread, fleet.names[place])

        def choice(place: int) -> Choice:
            return Choice(
                fleet.names[place],
                fleet.epochs[place],
                int(held[place]),
                float(wait[place]),
                float(prefill[place]),
                "overlap" if held[place] else "load",
                float(cost[place]),
            )

        return LazyRanking(sorted(range(len(fleet)), key=order), choice)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Note the prefill until it should be done, and forget those that are."""
        mine = self._prefills.setdefault(choice.name, deque(maxlen=_MOST_PREFILLS))
        until = now + choice.wait_seconds + choice.prefill_seconds
        mine.append((until, max(0, ask.prompt_tokens - choice.expected_tokens)))
        for name in [*self._prefills]:
            theirs = self._prefills[name]
            while theirs and theirs[0][0] <= now:
                theirs.popleft()
            if not theirs:
                del self._prefills[name]

    def _under_way(self, name: str, now: float) -> int:
        return sum(tokens for until, tokens in self._prefills.get(name, ()) if until > now)
