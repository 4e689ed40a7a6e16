"""affinity: to the replica with the least predicted time to first token, credit for cached prefixes included.

Predicted TTFT is wait + S(L, expected hit), in seconds. A prefix that many conversations share has as many
copies as its share of them needs; the home of a prompt is the ring's choice, among the replicas with copies,
for the first block that is its own. So conversations stay together and popular prefixes spread; what is known
of residency (digests, and this router's own memory) sharpens the expected hit. Near-ties fall by hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import ceil

import numpy as np
import numpy.typing as npt
from pydantic import Field

from router.chain.chain import Chain
from router.placement.ask import Ask, Choice, LazyRanking, Ranking
from router.placement.memory import Memory, Recall
from router.placement.view import Column, FleetView, Tokens
from router.settings import Options
from router.wire.report import PrefillCost

# More requests than a replica ever has in flight.
_TIED_FIRST = 1e9


class Config(Options):
    """Options of affinity. Defaults come from a study in simulation over five request traces."""

    use_digests: bool = Field(
        True, description="Read the digests that replicas publish; without, only hashing."
    )
    digest_lag_seconds: float = Field(
        5, ge=0, le=600, description="A prompt sent so shortly before a digest may not be computed in it yet."
    )
    digest_max_age_seconds: float = Field(
        30, gt=0, le=3600, description="An older digest is no better than none: caches turn over in minutes."
    )
    near_tie_seconds: float = Field(
        0.020, ge=0, le=10, description="Scores closer than this are equal; smaller makes stale routers herd."
    )
    others_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="How far other routers are taken to have done as this one since replicas last reported.",
    )
    beginning_slack: float = Field(
        0.1,
        ge=0,
        le=10,
        description="How much longer a new conversation may wait, as a share of its prefill, to begin where"
        " fewer requests are in flight: it stays for all its turns, and predictions are not that exact.",
    )
    home_bonus: float = Field(
        0.8, ge=0, le=1, description="Share of the private prefill granted to the home without digests."
    )
    home_bonus_with_digests: float = Field(
        0.1,
        ge=0,
        le=1,
        description="The same where digests tell residency: just enough to gather new prefixes.",
    )
    copies_slack: float = Field(
        3,
        ge=1,
        le=100,
        description="What a share of all conversations have in common is copied to so many times that share"
        " of the replicas: fewer would be overloaded by it, more would crowd caches out.",
    )
    second_share: float = Field(
        0.3,
        ge=0,
        le=1,
        description="How much of the home's expected hit the ring's next replica gets: spills land there.",
    )
    least_conversations: float = Field(
        4,
        ge=1,
        le=1000,
        description="A prefix shared by fewer conversations is never hot: chance, not evidence.",
    )
    small_preamble_tokens: int = Field(
        1024,
        ge=0,
        le=1_000_000,
        description="Instructions ahead of the first user message, up to this length, never decide the home:"
        " a copy on each replica costs less than routers that disagree until both know what is popular.",
    )
    popularity_decay_seconds: float = Field(
        600,
        ge=1,
        le=86_400,
        description="Popularity halves in about 0.7 of this; ten minutes follow a day's tides.",
    )
    remember_seconds: float = Field(
        1200, ge=1, le=86_400, description="How long a prompt is remembered; about as long as caches keep it."
    )
    remember_names: int = Field(
        80_000, ge=64, le=10_000_000, description="Names remembered, 34 bytes each; 80,000 take 2.7 MB."
    )


@dataclass(frozen=True, slots=True)
class _Prefix:
    """What a chain and memory say before replicas are looked at; lengths in tokens, replicas by place.

    `known` was sent somewhere by this router. `common` of it, one number for all or one a replica, is so
    popular that the replica should hold a copy: it is not held against one that lacks it, lest the one that
    had it first drew all new conversations. Behind `private_from` nothing is common anywhere. `home` and
    `second` are -1 where there is none.
    """

    key: bytes
    known: int
    common: Tokens | int
    private_from: int
    home: int
    second: int


class Policy:
    """One router's view of affinity: options and a memory of its own, shared with nobody."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._memory = Memory(config.remember_names, config.remember_seconds, config.popularity_decay_seconds)

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank by predicted time to first token; the home goes first among near-equals."""
        if not len(fleet):
            return ()
        config = self._config
        recall = self._recall(ask, fleet.members, now)
        prefix = self._prefix(ask, fleet, recall)
        expected, told, told_by_all = self._expected(ask, fleet, prefix, recall, now)
        wait = fleet.wait_seconds(now, self._config.others_share)
        hits = np.empty((2, len(fleet)))
        hits[0] = expected
        np.maximum(expected, prefix.common, out=hits[1])
        prefill, score = fleet.prefill_seconds(ask.prompt_tokens, hits)
        score += wait
        if prefix.home >= 0:
            score[prefix.home] -= self._bonus(ask, fleet, prefix, bool(told[prefix.home]))

        best = int(score.argmin())
        near = float(score[best]) + config.near_tie_seconds
        # A conversation that nobody holds yet may begin anywhere: where least is going on, as it stays there
        # for all its turns. Without digests it must begin at its home, or it would not be found again.
        anywhere = told_by_all and int(np.maximum.reduce(expected)) <= prefix.private_from
        if anywhere:
            near += config.beginning_slack * float(prefill[best])
        tied = score <= near

        def sort() -> list[int]:
            """Near-equals go first, the home before the others; what is left to chance falls by hash."""
            rank = np.where(tied, fleet.table[Column.IN_FLIGHT] if anywhere else 0.0, score + _TIED_FIRST)
            if prefix.home >= 0 and tied[prefix.home]:
                rank[prefix.home] -= 0.5
            order: list[int] = np.lexsort((fleet.tie_breaks(prefix.key), rank)).tolist()
            return order

        if np.count_nonzero(tied) == 1:
            first = best
        elif prefix.home >= 0 and tied[prefix.home] and not anywhere:
            first = prefix.home
        else:
            first = sort()[0]

        def choice(place: int) -> Choice:
            return Choice(
                fleet.names[place],
                fleet.epochs[place],
                int(expected[place]),
                float(wait[place]),
                float(prefill[place]),
                "home" if place == prefix.home else "digest" if told[place] else "ring",
                float(score[place]),
            )

        return LazyRanking(first, len(fleet), sort, choice)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Remember the prompt and who serves it."""
        self._memory.record(ask, choice.name, choice.epoch, now)

    def _recall(self, ask: Ask, members: int, now: float) -> Recall:
        """Return what is known of the prompt; hot is what deserves more than one copy."""
        slack = self._config.copies_slack
        return self._memory.recall(
            ask, 1 / (slack * members), 1 / slack, self._config.least_conversations, now
        )

    def _prefix(self, ask: Ask, fleet: FleetView, recall: Recall) -> _Prefix:
        """Say what is common, and to whom; home is the ring's choice among those with the copies."""
        chain = ask.chain
        block = chain.block_tokens if chain else 1
        everywhere = max(recall.everywhere_depth, self._preamble_depth(chain)) if chain else 0
        depth = max(recall.hot_depth, everywhere)
        copies = ceil(self._config.copies_slack * recall.hot_share * fleet.members)
        key = ask.key_at(depth + 1)
        holders = (
            self._holders(ask, fleet, depth, copies) if everywhere < depth and copies < fleet.members else []
        )
        if holders:
            copied: Tokens = np.full(len(fleet), everywhere * block, dtype=np.int64)
            copied[holders] = depth * block
            common: Tokens | int = copied
            homes = islice((place for place in self._alive(fleet, key) if place in holders), 2)
        else:
            common = depth * block
            homes = islice(self._alive(fleet, key), 2)
        home, second = (*homes, -1, -1)[:2]
        return _Prefix(key, recall.depth * block, common, depth * block, home, second)

    @staticmethod
    def _holders(ask: Ask, fleet: FleetView, depth: int, copies: int) -> list[int]:
        """Return who should hold copies of the first `depth` blocks: the same, whoever of them is dead."""
        walked = islice(fleet.ring.walk(ask.key_at(depth)), copies)
        return [fleet.places[name] for name in walked if name in fleet.places]

    @staticmethod
    def _alive(fleet: FleetView, key: bytes) -> Iterator[int]:
        """Walk the ring from the key's place, over the replicas that are there."""
        places = fleet.places
        return (places[name] for name in fleet.ring.walk(key) if name in places)

    def _preamble_depth(self, chain: Chain) -> int:
        """Return how many blocks lie wholly in a small preamble."""
        if chain.preamble_tokens > self._config.small_preamble_tokens:
            return 0
        return chain.preamble_tokens // chain.block_tokens

    def _expected(
        self, ask: Ask, fleet: FleetView, prefix: _Prefix, recall: Recall, now: float
    ) -> tuple[Tokens, npt.NDArray[np.bool_], bool]:
        """Return the tokens that each replica is expected to hold, whether its digest told, and all did."""
        config = self._config
        last = fleet.places.get(recall.replica, -1)
        renewed = last >= 0 and fleet.epochs[last] != recall.epoch
        if config.use_digests:
            expected = fleet.held_tokens(ask, now - config.digest_max_age_seconds)
            told = expected >= 0
            told_by_all = int(np.minimum.reduce(expected)) >= 0
        else:
            told, told_by_all = np.zeros(len(fleet), dtype=np.bool_), False
        if not told_by_all:
            guessed = self._guessed(fleet, prefix, last, renewed)
            expected = np.where(told, expected, guessed) if config.use_digests else guessed
        if last >= 0 and not renewed and told[last] and expected[last] < prefix.known:
            told_at = fleet.caches.told_at(fleet.roster.slots[last : last + 1])[0]
            if recall.at > told_at - config.digest_lag_seconds:
                # Sent there since the digest was made, or so shortly before that it cannot tell yet.
                expected[last] = prefix.known
        if ask.chain and ask.prompt_tokens <= len(ask.chain.names) * ask.chain.block_tokens:
            # One token at least is always computed, and blocks hit whole.
            block = ask.chain.block_tokens
            np.minimum(expected, max(0, ask.prompt_tokens - 1) // block * block, out=expected)
        return expected, told, told_by_all

    def _guessed(self, fleet: FleetView, prefix: _Prefix, last: int, renewed: bool) -> Tokens:
        """Return what replicas are expected to hold that do not tell."""
        expected = np.full(len(fleet), np.minimum(prefix.common, prefix.known), dtype=np.int64)
        if prefix.second >= 0:
            hot = int(expected[prefix.second])
            expected[prefix.second] = hot + int(self._config.second_share * (prefix.known - hot))
        if prefix.home >= 0:
            expected[prefix.home] = prefix.known
        if last >= 0:
            # It served this prompt; if it has started anew since, nothing is left of it.
            expected[last] = 0 if renewed else prefix.known
        return expected

    def _bonus(self, ask: Ask, fleet: FleetView, prefix: _Prefix, told: bool) -> float:
        """Return the seconds granted to the home: a share of computing all that is not common."""
        config = self._config
        share = config.home_bonus_with_digests if told else config.home_bonus
        cost = PrefillCost(*fleet.table[Column.BASE_SECONDS :, prefix.home].tolist())
        length = ask.prompt_tokens
        return share * (cost.seconds(length, prefix.private_from) - cost.seconds(length, length - 1))
