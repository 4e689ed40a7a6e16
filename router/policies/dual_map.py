"""dual_map: DualMap: two replicas for each prefix by two hashes; the one that holds more, unless it is slow.

Sources: Yuan, Zuo, Wang, Chen, Tan, Yu: DualMap: Enabling Both Cache Affinity and Load Balancing for
Distributed LLM Serving (ICLR 2026, arXiv 2602.06502); its code, A-zhudong/DualMap, dualmap/scheduler/utils
and start_up.py (defaults). Of the two the one with the longer match takes the request, unless its
predicted time to first token exceeds half the SLO: then the one with the lesser. A prefix begins at its first
512 tokens; where more than 1/16 of the recent requests share it, requests are told apart by 512 tokens more.

Its third part, moving requests that wait in the router to other replicas, needs a queue in the router, which
there is not here: requests are sent at once. Predictions are wait and S here, tokens times a constant there.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import ClassVar

import numpy as np
from pydantic import Field
from xxhash import xxh3_128_digest

from router.placement.ask import Ask, Choice, LazyRanking, Ranking
from router.placement.policy import Sees
from router.placement.ring import tie_break
from router.placement.view import Column, FleetView, Floats, Tokens
from router.settings import Options

_SECOND_HASH = b"second"


class Config(Options):
    """Options of dual_map; defaults are those of its code."""

    slo_seconds: float = Field(
        5, gt=0, le=3600, description="The wanted time to first token; load decides from half of it on."
    )
    step_tokens: int = Field(
        512, ge=1, le=1_000_000, description="Prefixes are told apart by this much more at a time."
    )
    hot_share: float = Field(
        0.0612, gt=0, le=1, description="A prefix is hot from this share of the recent requests on."
    )
    window_requests: int = Field(
        200, ge=1, le=100_000, description="How many prefixes, the last seen, make the shares."
    )
    least_requests: int = Field(
        20, ge=1, le=100_000, description="No prefix is hot before that many were seen."
    )
    remember_names: int = Field(
        16_384, ge=64, le=1_000_000, description="Most hot prefixes kept, about 200 bytes each."
    )


class Policy:
    """One router's hot prefixes, and the two rings: one ring, asked with two hashes of a key."""

    sees: ClassVar[Sees] = "caches"

    def __init__(self, config: Config) -> None:
        self._config = config
        self._hot: OrderedDict[bytes, None] = OrderedDict()
        self._window: deque[bytes] = deque()
        self._counts: Counter[bytes] = Counter()

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank the pair first, and the others in ring order from the first."""
        if not len(fleet):
            return ()
        held = np.maximum(fleet.held_tokens(ask), 0)
        wait = fleet.wait_seconds(now)
        # One token at least is always computed.
        expected = np.minimum(held, max(0, ask.prompt_tokens - 1))
        prefill = fleet.prefill_seconds(ask.prompt_tokens, expected)
        walk, pair = self._pair(ask, fleet)
        pair, reason = self._compare(ask, fleet, pair, held, wait + prefill)

        def choice(place: int) -> Choice:
            return Choice(
                fleet.names[place],
                fleet.epochs[place],
                int(expected[place]),
                float(wait[place]),
                float(prefill[place]),
                reason if place in pair else "rest",
                float(wait[place] + prefill[place]),
            )

        return LazyRanking.of([*pair, *(place for place in walk if place not in pair)], choice)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Count the request's prefix, and tell it apart by more from now on where it is hot."""
        depth = self._depth(ask)
        if ask.chain is None or not ask.chain.names:
            return
        prefix = self._prefix(ask, depth)
        if self._observe(prefix) >= self._config.hot_share:
            self._hot[prefix] = None
        for shallower in range(depth, 0, -1):
            if self._prefix(ask, shallower) in self._hot:
                self._hot.move_to_end(self._prefix(ask, shallower))
        while len(self._hot) > self._config.remember_names:
            self._hot.popitem(last=False)

    def _pair(self, ask: Ask, fleet: FleetView) -> tuple[list[int], list[int]]:
        """Return all places in ring order for the prefix, and the pair."""
        key = self._prefix(ask, self._depth(ask))
        places = fleet.places
        walk = [places[name] for name in fleet.ring.walk(key) if name in places]
        second_walk = fleet.ring.walk(xxh3_128_digest(_SECOND_HASH + key))
        second = next(places[name] for name in second_walk if name in places)
        if second == walk[0]:
            return walk, walk[:2]
        return walk, [walk[0], second]

    def _compare(
        self, ask: Ask, fleet: FleetView, pair: list[int], held: Tokens, seconds: Floats
    ) -> tuple[list[int], str]:
        """Return the pair, the better first, and why."""
        busy = fleet.table[Column.IN_FLIGHT_TOKENS]

        def tie(place: int) -> tuple[float, int]:
            return float(busy[place]), -tie_break(ask.spread, fleet.names[place])

        by_match = sorted(pair, key=lambda place: (-int(held[place]), *tie(place)))
        if float(seconds[by_match[0]]) <= self._config.slo_seconds / 2:
            return by_match, "match"
        return sorted(pair, key=lambda place: (float(seconds[place]), *tie(place))), "load"

    def _depth(self, ask: Ask) -> int:
        """Return how many steps of the prompt make its prefix: one more than are hot."""
        depth = 1
        while self._prefix(ask, depth) in self._hot and depth < self._steps(ask):
            depth += 1
        return depth

    def _prefix(self, ask: Ask, depth: int) -> bytes:
        if ask.chain is None:
            return ask.spread
        return ask.key_at(depth * max(1, self._config.step_tokens // ask.chain.block_tokens))

    def _steps(self, ask: Ask) -> int:
        """Return how many steps the prompt has, a last part of one included."""
        if ask.chain is None:
            return 1
        return -(-len(ask.chain.names) // max(1, self._config.step_tokens // ask.chain.block_tokens))

    def _observe(self, prefix: bytes) -> float:
        """Count a prefix; return its share of the window."""
        self._window.append(prefix)
        self._counts[prefix] += 1
        if len(self._window) > self._config.window_requests:
            oldest = self._window.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        if len(self._window) < self._config.least_requests:
            return 0.0
        return self._counts[prefix] / len(self._window)
