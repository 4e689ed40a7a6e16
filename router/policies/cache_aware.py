"""cache_aware: SGLang's router, policy `cache_aware`: by remembered prefixes, by queue where load is uneven.

Source: sgl-project/sglang, sgl-router/src/policies/{cache_aware,tree}.rs; the defaults are those of its
command line (router_args.py). Load is this router's own requests in flight. Where the busiest replica has 64
more and half again as many as the idlest, the idlest takes the request. Else, where more than 0.3 of the
prompt was sent to some replica before, that one takes it (of several an arbitrary one, always the same), and
where not, the replica that was sent the least text so far.

The source's radix trees hold characters, here blocks and what is behind the last; sizes are in tokens, at
four characters each. It evicts every two minutes what exceeds the bound, here at once, leaves first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from pydantic import Field
from xxhash import xxh3_128_digest

from router.placement.ask import Ask, Choice, LazyRanking, Ranking
from router.placement.ring import tie_break
from router.placement.view import Column, FleetView
from router.settings import Options

# A replica in one life of its cache: what starts anew has a new address in the source's world.
_Replica = tuple[str, str]


class Config(Options):
    """Options of cache_aware, under the source's names with units; defaults are the source's."""

    cache_threshold: float = Field(
        0.3, ge=0, le=1, description="A match counts where more than this share of the prompt is known."
    )
    balance_abs_threshold: int = Field(
        64,
        ge=0,
        le=1_000_000,
        description="Load is uneven where the most in flight exceeds the least by more than this.",
    )
    balance_rel_threshold: float = Field(
        1.5, ge=1, le=1000, description="Uneven is only what is more than this multiple of the least, too."
    )
    max_tree_tokens: int = Field(
        2**24,
        ge=1024,
        le=2**40,
        description="Most tokens remembered of a replica; the source's 2^26 characters.",
    )
    remember_names: int = Field(
        262_144,
        ge=64,
        le=10_000_000,
        description="Most blocks remembered of all replicas, about 400 bytes each; the source has no bound.",
    )


class _Tree:
    """What one replica was sent: names with the tokens each stands for, the ones seen longest ago first."""

    def __init__(self) -> None:
        self.names: OrderedDict[bytes, int] = OrderedDict()
        self.tokens = 0


class Policy:
    """One router's trees, one a replica."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._trees: dict[_Replica, _Tree] = {}
        self._holders: dict[bytes, set[_Replica]] = {}
        self._count = 0

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank the chosen replica first, and the others by requests in flight."""
        if not len(fleet):
            return ()
        in_flight = fleet.table[Column.IN_FLIGHT]
        path = _path(ask)

        def shortest(place: int) -> tuple[float, int]:
            return float(in_flight[place]), -tie_break(ask.spread, fleet.names[place])

        queue = sorted(range(len(fleet)), key=shortest)
        least, most = float(in_flight.min()), float(in_flight.max())
        config = self._config
        uneven = most - least > config.balance_abs_threshold and most > config.balance_rel_threshold * least
        first, reason = (queue[0], "shortest queue") if uneven else self._by_trees(ask, fleet, path)
        wait = fleet.wait_seconds(now)

        def choice(place: int) -> Choice:
            tokens = self._known_tokens((fleet.names[place], fleet.epochs[place]), path, ask.prompt_tokens)
            return Choice(
                fleet.names[place],
                fleet.epochs[place],
                tokens,
                float(wait[place]),
                float(fleet.prefill_seconds(ask.prompt_tokens, tokens)[place]),
                reason if place == first else "queue",
                float(in_flight[place]),
            )

        return LazyRanking.of(sorted(queue, key=lambda place: place != first), choice)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Put the prompt into the replica's tree, and let go what exceeds the bounds."""
        replica = (choice.name, choice.epoch)
        if replica not in self._trees:
            for other in [other for other in self._trees if other[0] == choice.name]:
                self._drop(other)
            self._trees[replica] = _Tree()
        tree = self._trees[replica]
        # Deepest first, so that a beginning is always fresher than what follows it, and outlives it.
        for name, tokens in reversed(_path(ask)):
            if name not in tree.names:
                tree.names[name] = tokens
                tree.tokens += tokens
                self._count += 1
                self._holders.setdefault(name, set()).add(replica)
            tree.names.move_to_end(name)
        while tree.tokens > self._config.max_tree_tokens:
            self._evict(replica)
        while self._count > self._config.remember_names:
            self._evict(max(self._trees, key=lambda one: len(self._trees[one].names)))

    def _by_trees(self, ask: Ask, fleet: FleetView, path: Sequence[tuple[bytes, int]]) -> tuple[int, str]:
        """Return the place of the replica with the longest match, or else with the smallest tree."""
        replicas = list(zip(fleet.names, fleet.epochs, strict=True))
        depth = bisect_left(path, True, key=lambda step: step[0] not in self._holders)
        known = sum(tokens for _, tokens in path[:depth])
        if depth and known > self._config.cache_threshold * ask.prompt_tokens:
            deepest = path[depth - 1][0]
            holders = self._holders[deepest]
            matched = [place for place, replica in enumerate(replicas) if replica in holders]
            if matched:
                return max(matched, key=lambda place: tie_break(deepest, fleet.names[place])), "match"

        def smallest(place: int) -> tuple[int, int]:
            tree = self._trees.get(replicas[place])
            return tree.tokens if tree else 0, -tie_break(ask.spread, fleet.names[place])

        return min(range(len(fleet)), key=smallest), "smallest tree"

    def _known_tokens(self, replica: _Replica, path: Sequence[tuple[bytes, int]], length: int) -> int:
        """Return how many leading tokens were sent to `replica`; one token at least is always computed."""
        tree = self._trees.get(replica)
        if tree is None:
            return 0
        depth = bisect_left(path, True, key=lambda step: step[0] not in tree.names)
        return min(sum(tokens for _, tokens in path[:depth]), max(0, length - 1))

    def _evict(self, replica: _Replica) -> None:
        """Forget the name that `replica` was sent longest ago; it is a leaf."""
        tree = self._trees[replica]
        name, tokens = tree.names.popitem(last=False)
        tree.tokens -= tokens
        self._count -= 1
        holders = self._holders[name]
        holders.discard(replica)
        if not holders:
            del self._holders[name]
        if not tree.names:
            del self._trees[replica]

    def _drop(self, replica: _Replica) -> None:
        while replica in self._trees:
            self._evict(replica)


def _path(ask: Ask) -> Sequence[tuple[bytes, int]]:
    """Return the prompt's names with the tokens each stands for; the last for what fills no block."""
    chain = ask.chain
    if chain is None:
        return [(ask.spread, ask.prompt_tokens)]
    path = [(name, chain.block_tokens) for name in chain.names]
    rest = ask.prompt_tokens - len(path) * chain.block_tokens
    if rest > 0:
        parent = chain.names[-1] if chain.names else b""
        path.append((xxh3_128_digest(parent + chain.remainder), rest))
    return path
