"""prefixaware: vLLM production-stack's policy `prefixaware`: any replica that was sent the longest prefix.

Source: vllm-project/production-stack, src/vllm_router/prefix/hashtrie.py and routers/routing_logic.py
(PrefixAwareRouter). A trie of 128-character chunks remembers which replicas each prefix was sent to; one of
those at the end of the longest path takes the request, by chance there and by hash here. Load counts for
nothing, so that a prefix once sent to one replica stays on it alone.

128 characters are 32 tokens at four characters each: two blocks of 16, and one where blocks are larger. The
source forgets nothing; here the prefixes seen longest ago go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pydantic import Field

from router.placement.ask import Ask, Choice, LazyRanking, Ranking
from router.placement.ring import tie_break
from router.placement.view import FleetView
from router.settings import Options

_CHARACTERS_PER_TOKEN = 4

# A replica in one life of its cache: what starts anew has a new address in the source's world.
_Replica = tuple[str, str]


class Config(Options):
    """Options of prefixaware."""

    chunk_characters: int = Field(
        128,
        ge=4,
        le=1_000_000,
        description="How much of a prompt one node of the trie stands for; the source's.",
    )
    remember_names: int = Field(
        262_144,
        ge=64,
        le=10_000_000,
        description="Most nodes, about 300 bytes each; the source has no bound, and so many last for hours.",
    )


class Policy:
    """Names stand for whole prefixes, so that a table of names is the trie."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._sent_to: OrderedDict[bytes, frozenset[_Replica]] = OrderedDict()

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank first those at the end of the longest path; within both parts by hash."""
        if not len(fleet):
            return ()
        chunk_tokens = self._chunk_blocks(ask) * (ask.chain.block_tokens if ask.chain else 1)
        matched: set[_Replica] = set()
        depth = 0
        alive = set(zip(fleet.names, fleet.epochs, strict=True))
        for name in self._path(ask):
            further = self._sent_to.get(name, frozenset()) & alive
            if not further:
                break
            matched = set(further)
            depth += 1
        wait = fleet.wait_seconds(now)

        def is_match(place: int) -> bool:
            return (fleet.names[place], fleet.epochs[place]) in matched

        def order(place: int) -> tuple[bool, int]:
            return not is_match(place), -tie_break(ask.spread, fleet.names[place])

        def choice(place: int) -> Choice:
            tokens = min(depth * chunk_tokens, max(0, ask.prompt_tokens - 1)) if is_match(place) else 0
            return Choice(
                fleet.names[place],
                fleet.epochs[place],
                tokens,
                float(wait[place]),
                float(fleet.prefill_seconds(ask.prompt_tokens, tokens)[place]),
                "prefix" if tokens else "chance",
                -float(tokens),
            )

        return LazyRanking.of(sorted(range(len(fleet)), key=order), choice)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Put the prompt into the trie, and let what was seen longest ago go."""
        replica = (choice.name, choice.epoch)
        alone = frozenset([replica])
        # Deepest first, so that a beginning is always fresher than what follows it, and outlives it.
        for name in reversed(self._path(ask)):
            known = self._sent_to.get(name, alone)
            if replica not in known:
                # What it was sent in lives that are over does not count any more.
                known = frozenset(one for one in known if one[0] != choice.name) | alone
            self._sent_to[name] = known
            self._sent_to.move_to_end(name)
        while len(self._sent_to) > self._config.remember_names:
            self._sent_to.popitem(last=False)

    def _chunk_blocks(self, ask: Ask) -> int:
        if ask.chain is None:
            return 1
        return max(1, self._config.chunk_characters // _CHARACTERS_PER_TOKEN // ask.chain.block_tokens)

    def _path(self, ask: Ask) -> Sequence[bytes]:
        """Return the names at the ends of the prompt's chunks, shallowest first."""
        if ask.chain is None:
            return ()
        step = self._chunk_blocks(ask)
        return ask.chain.names[step - 1 :: step]
