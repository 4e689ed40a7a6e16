"""kv_overlap: NVIDIA Dynamo's KV router: blocks to prefill, less what is held, plus blocks to decode with.

Source: ai-dynamo/dynamo, lib/kv-router/src/scheduling/{selector,config}.rs and src/sequences (formerly
lib/llm/src/kv_router): cost = weight * (prefill tokens under way + prompt - held) / block + active blocks.
Load is what this router itself has under way, as its routers share nothing by default: prefill tokens until
the first token, and the blocks of all requests until they end. At temperature 0, the default, the least cost
wins; equals are drawn by chance there, by hash here.

A block that several active requests share counts once. No policy is told when requests get their first token
or end: a prefill counts until it was predicted to end, and of all that was sent to a replica the last ones
are taken for active, as many as are in flight.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar

import numpy as np
from pydantic import Field

from router.placement.ask import Ask, Choice, LazyRanking, Ranking
from router.placement.policy import Sees
from router.placement.ring import tie_break
from router.placement.view import Column, FleetView, Floats
from router.settings import Options

# Of one router on one replica; beyond, the oldest count no more.
_MOST_PREFILLS = 1024
_MOST_ACTIVE = 256
_MOST_REPLICAS = 1024


class Config(Options):
    """Options of kv_overlap; defaults are Dynamo's."""

    overlap_weight: float = Field(
        1, ge=0, le=100, description="Weight of prefill against decode; --router-kv-overlap-score-weight."
    )
    remember_names: int = Field(
        262_144,
        ge=64,
        le=10_000_000,
        description="Most block names of active prompts, about 70 bytes each; beyond, the oldest prompts do"
        " not count. The source has no bound.",
    )


@dataclass(slots=True)
class _Sent:
    """What this router has sent to a replica: prefills until they should end, and the last prompts' names."""

    prefills: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_MOST_PREFILLS))
    prompts: deque[Sequence[bytes]] = field(default_factory=deque)
    # The names of the last so many prompts; made when asked for, void when one more is sent.
    names_of: int = 0
    names: frozenset[bytes] = frozenset()

    def under_way(self, now: float) -> int:
        """Return the tokens of prefills that should not have ended."""
        return sum(tokens for until, tokens in self.prefills if until > now)

    def active_with(self, names: Sequence[bytes], count: int) -> int:
        """Return how many blocks the last `count` prompts and one with `names` have, each counted once."""
        if count != self.names_of:
            skipped = max(0, len(self.prompts) - count)
            self.names = frozenset().union(*islice(self.prompts, skipped, None))
            self.names_of = count
        active = self.names
        # Names stand for whole prefixes: where one is active, all before it are.
        return len(active) + len(names) - bisect_left(names, True, key=lambda name: name not in active)


class Policy:
    """Costs in tokens: in blocks, whatever their size, the order is the same."""

    sees: ClassVar[Sees] = "caches"

    def __init__(self, config: Config) -> None:
        self._config = config
        # By replica and life: what was sent to one that has started anew is not under way there.
        self._sent: OrderedDict[tuple[str, str], _Sent] = OrderedDict()
        self._name_count = 0

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank by cost, in tokens."""
        if not len(fleet):
            return ()
        held = np.maximum(fleet.held_tokens(ask), 0)
        sent = [self._sent.get(one) or _Sent() for one in zip(fleet.names, fleet.epochs, strict=True)]
        under_way = np.array([one.under_way(now) for one in sent], dtype=np.float64)
        to_prefill = under_way + np.maximum(ask.prompt_tokens - held, 0)
        active = self._active_tokens(ask, fleet, sent)
        cost = self._config.overlap_weight * to_prefill + active
        wait = fleet.wait_seconds(now)
        # One token at least is always computed.
        expected = np.minimum(held, max(0, ask.prompt_tokens - 1))
        prefill = fleet.prefill_seconds(ask.prompt_tokens, expected)

        def order(place: int) -> tuple[float, int]:
            return float(cost[place]), -tie_break(ask.spread, fleet.names[place])

        def choice(place: int) -> Choice:
            return Choice(
                fleet.names[place],
                fleet.epochs[place],
                int(expected[place]),
                float(wait[place]),
                float(prefill[place]),
                "overlap" if held[place] else "load",
                float(cost[place]),
            )

        return LazyRanking.of(sorted(range(len(fleet)), key=order), choice)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Note the prefill until it should be done and the prompt, and forget what cannot count any more."""
        replica = (choice.name, choice.epoch)
        sent = self._sent.setdefault(replica, _Sent())
        self._sent.move_to_end(replica)
        if len(self._sent) > _MOST_REPLICAS:
            _, gone = self._sent.popitem(last=False)
            self._name_count -= sum(map(len, gone.prompts))
        until = now + choice.wait_seconds + choice.prefill_seconds
        sent.prefills.append((until, max(0, ask.prompt_tokens - choice.expected_tokens)))
        while sent.prefills and sent.prefills[0][0] <= now:
            sent.prefills.popleft()
        names = ask.chain.names if ask.chain else ()
        sent.prompts.append(names)
        sent.names_of, sent.names = 0, frozenset()
        self._name_count += len(names)
        if len(sent.prompts) > _MOST_ACTIVE:
            self._name_count -= len(sent.prompts.popleft())
        while self._name_count > self._config.remember_names:
            most = max(self._sent.values(), key=lambda one: sum(map(len, one.prompts)))
            self._name_count -= len(most.prompts.popleft())

    def _active_tokens(self, ask: Ask, fleet: FleetView, sent: Sequence[_Sent]) -> Floats:
        """Return the tokens of blocks that would be active with this prompt, each block once."""
        chain = ask.chain
        in_flight = fleet.table[Column.IN_FLIGHT]
        if chain is None:
            unshared: Floats = fleet.table[Column.IN_FLIGHT_TOKENS] + ask.prompt_tokens
            return unshared
        together = [
            one.active_with(chain.names, int(count)) for one, count in zip(sent, in_flight, strict=True)
        ]
        return np.array(together, dtype=np.float64) * chain.block_tokens
