"""kvaware: vLLM production-stack's policy `kvaware`: to whoever holds most of the prompt, whatever its load.

Source: vllm-project/production-stack, src/vllm_router/routers/routing_logic.py (KvawareRouter, _qps_routing)
and parsers/parser.py (defaults). The index is LMCache's controller, told by all replicas; here it is what
replicas tell of their caches, exact in a simulation. Of several with an equal match the controller names the
one that told of it first, always the same one: here the first by a hash of where the match ends. So a prefix
that all share stays on one replica for good. Where the longest match leaves more than the threshold to
compute, the request goes by its session on the ring, and without one to the replica that this router sent
the fewest requests of late, of equals by hash.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import ClassVar

import numpy as np
from pydantic import Field

from router.placement.ask import Ask, Choice, LazyRanking, Ranking
from router.placement.policy import Sees
from router.placement.ring import tie_break
from router.placement.view import FleetView, Tokens
from router.settings import Options

# Over 1,000 requests a second for a whole window; beyond, the rates are of a shorter one.
_MOST_SENT = 65_536


class Config(Options):
    """Options of kvaware; defaults are the source's."""

    threshold_tokens: int = Field(
        2000,
        ge=0,
        le=10_000_000,
        description="A match counts where at most this much is left to compute; --kv-aware-threshold.",
    )
    window_seconds: float = Field(
        60, gt=0, le=3600, description="Request rates are taken over this long; --request-stats-window."
    )


class Policy:
    """Longest match first, if it is long enough; else session or the least request rate."""

    sees: ClassVar[Sees] = "caches"

    def __init__(self, config: Config) -> None:
        self._config = config
        self._sent: deque[tuple[float, str]] = deque()
        self._counts: Counter[str] = Counter()

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank by match; the fallback's order decides where no match is long enough, and among equals."""
        if not len(fleet):
            return ()
        held = np.maximum(fleet.held_tokens(ask), 0)
        fallback = self._fallback(ask, fleet, now)
        matched = self._long_enough(ask, held)
        if matched:
            first = self._first_holder(ask, fleet, held)
            order = [first, *(place for place in fallback if place != first)]
        else:
            order = fallback
        wait = fleet.wait_seconds(now)
        # One token at least is always computed.
        expected = np.minimum(held, max(0, ask.prompt_tokens - 1))
        prefill = fleet.prefill_seconds(ask.prompt_tokens, expected)
        reason = "match" if matched else "rate" if ask.session is None else "session"

        def choice(place: int) -> Choice:
            return Choice(
                fleet.names[place],
                fleet.epochs[place],
                int(expected[place]),
                float(wait[place]),
                float(prefill[place]),
                reason,
                -float(held[place]),
            )

        return LazyRanking.of(order, choice)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Count the request, and forget those older than the window."""
        self._sent.append((now, choice.name))
        self._counts[choice.name] += 1
        while len(self._sent) > _MOST_SENT or now - self._sent[0][0] > self._config.window_seconds:
            self._counts[self._sent.popleft()[1]] -= 1
        self._counts = +self._counts

    def _first_holder(self, ask: Ask, fleet: FleetView, held: Tokens) -> int:
        """Return the place that holds most, of several always the same one."""
        most = int(held.max())
        block = ask.chain.block_tokens if ask.chain else 1
        key = ask.key_at(most // block)
        holders = [place for place in range(len(fleet)) if held[place] == most]
        return max(holders, key=lambda place: tie_break(key, fleet.names[place]))

    def _long_enough(self, ask: Ask, held: Tokens) -> bool:
        longest = int(held.max())
        return longest > 0 and longest >= ask.prompt_tokens - self._config.threshold_tokens

    def _fallback(self, ask: Ask, fleet: FleetView, now: float) -> list[int]:
        """Return places by the ring for the session, or by the request rate."""
        if ask.session is not None:
            places = fleet.places
            return [places[name] for name in fleet.ring.walk(ask.session) if name in places]
        counts = self._counts.copy()
        for at, name in self._sent:
            if now - at <= self._config.window_seconds:
                break
            counts[name] -= 1
        return sorted(
            range(len(fleet)),
            key=lambda place: (
                counts[fleet.names[place]],
                -tie_break(ask.spread, fleet.names[place]),
            ),
        )
