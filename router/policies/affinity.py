"""affinity: to the replica with the least predicted time to first token, credit for cached prefixes included.

Predicted TTFT is wait + S(L, expected hit), in seconds. A prefix that many conversations share has as many
copies as its share of them needs; the home of a prompt is the ring's choice, among the replicas with copies,
for the first block that is its own. So conversations stay together and popular prefixes spread; what is known
of residency (digests, and this router's own memory) sharpens the expected hit. Near-ties fall by hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import ceil
from typing import NamedTuple

from pydantic import Field
from xxhash import xxh3_64_intdigest

from router.chain.chain import Chain
from router.placement.ask import Ask, Choice, LazyRanking, Ranking
from router.placement.memory import Memory, Recall
from router.placement.view import Column, FleetView
from router.settings import Options

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


class _Prefix(NamedTuple):
    """What a chain and memory say before replicas are looked at; lengths in tokens, replicas by place.

    `known` was sent somewhere by this router. `common` of it, of each replica, is so popular that the replica
    should hold a copy: it is not held against one that lacks it, lest the one that had it first drew all new
    conversations. Behind `private_from` nothing is common anywhere. `home` and `second` are -1 where there is
    none.
    """

    key: bytes
    known: int
    common: Sequence[int]
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
        recall = self._recall(ask, fleet.roster.members, now)
        prefix = self._prefix(ask, fleet, recall)
        home = prefix.home
        expected, told = self._expected(ask, fleet, prefix, recall, now)
        wait = fleet.waits(now, config.others_share)
        prefill = fleet.prefills(ask.prompt_tokens, expected)
        judged = self._judged(ask, fleet, prefix, expected, prefill)
        score = [one + other for one, other in zip(judged, wait, strict=True)]
        if home >= 0:
            score[home] -= self._bonus(ask, fleet, prefix, told is not None and told[home] >= 0)

        least = min(score)
        near = least + config.near_tie_seconds
        # A conversation that nobody holds yet may begin anywhere: where least is going on, as it stays there
        # for all its turns. Without digests it must begin at its home, or it would not be found again.
        anywhere = told is not None and min(told) >= 0 and max(expected) <= prefix.private_from
        if anywhere:
            near += config.beginning_slack * prefill[score.index(least)]

        def order(place: int) -> tuple[float, int]:
            """Near-equals go first, the home before the others; what is left to chance falls by hash."""
            if score[place] > near:
                rank = score[place] + _TIED_FIRST
            else:
                rank = fleet.columns[Column.IN_FLIGHT][place] if anywhere else 0.0
                rank -= 0.5 * (place == home)
            return rank, fleet.tie_break(key, place)

        key = xxh3_64_intdigest(prefix.key)
        if home >= 0 and score[home] <= near and not anywhere:
            first = home
        else:
            tied = [place for place, seconds in enumerate(score) if seconds <= near]
            first = min(tied, key=order) if len(tied) > 1 else tied[0]

        def choice(place: int) -> Choice:
            holds = told is not None and told[place] >= 0
            return Choice(
                fleet.roster.names[place],
                fleet.roster.epochs[place],
                expected[place],
                wait[place],
                prefill[place],
                "home" if place == home else "digest" if holds else "ring",
                score[place],
            )

        return LazyRanking(first, len(score), lambda: sorted(range(len(score)), key=order), choice)

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
        chain, roster = ask.chain, fleet.roster
        block = chain.block_tokens if chain else 1
        everywhere = max(recall.everywhere_depth, self._preamble_depth(chain)) if chain else 0
        depth = max(recall.hot_depth, everywhere)
        copies = ceil(self._config.copies_slack * recall.hot_share * roster.members)
        key = ask.key_at(depth + 1)
        if everywhere < depth and copies < roster.members:
            holders = self._holders(ask, fleet, depth, copies)
        else:
            holders = []
        if holders:
            common = [everywhere * block] * len(roster.names)
            for place in holders:
                common[place] = depth * block
            walked = (roster.places.get(name, -1) for name in roster.ring.walk(key))
            home, second = (*islice((place for place in walked if place in holders), 2), -1, -1)[:2]
        else:
            common = [depth * block] * len(roster.names)
            home, second = roster.homes(key)
        return _Prefix(key, recall.depth * block, common, depth * block, home, second)

    @staticmethod
    def _holders(ask: Ask, fleet: FleetView, depth: int, copies: int) -> list[int]:
        """Return who should hold copies of the first `depth` blocks: the same, whoever of them is dead."""
        walked = islice(fleet.ring.walk(ask.key_at(depth)), copies)
        return [fleet.places[name] for name in walked if name in fleet.places]

    def _preamble_depth(self, chain: Chain) -> int:
        """Return how many blocks lie wholly in a small preamble."""
        if chain.preamble_tokens > self._config.small_preamble_tokens:
            return 0
        return chain.preamble_tokens // chain.block_tokens

    def _expected(
        self, ask: Ask, fleet: FleetView, prefix: _Prefix, recall: Recall, now: float
    ) -> tuple[list[int], Sequence[int] | None]:
        """Return what each replica is expected to hold, in tokens, and what digests told, if any did."""
        config = self._config
        last = fleet.roster.places.get(recall.replica, -1)
        renewed = last >= 0 and fleet.roster.epochs[last] != recall.epoch
        told = fleet.told_tokens(ask, now - config.digest_max_age_seconds) if config.use_digests else None
        expected = self._guessed(prefix, last, renewed)
        if told is not None:
            expected = [held if held >= 0 else guess for held, guess in zip(told, expected, strict=True)]
            if last >= 0 and not renewed and 0 <= told[last] < prefix.known:
                told_at = fleet.caches.told_at(fleet.roster.slots[last : last + 1])[0]
                if recall.at > told_at - config.digest_lag_seconds:
                    # Sent there since the digest was made, or so shortly before that it cannot tell yet.
                    expected[last] = prefix.known
        if ask.chain and ask.prompt_tokens <= len(ask.chain.names) * ask.chain.block_tokens:
            # One token at least is always computed, and blocks hit whole.
            block = ask.chain.block_tokens
            most = max(0, ask.prompt_tokens - 1) // block * block
            expected = [min(held, most) for held in expected]
        return expected, told

    def _guessed(self, prefix: _Prefix, last: int, renewed: bool) -> list[int]:
        """Return what replicas are expected to hold that do not tell."""
        known = prefix.known
        expected = [common if common < known else known for common in prefix.common]
        if prefix.second >= 0:
            hot = expected[prefix.second]
            expected[prefix.second] = hot + int(self._config.second_share * (known - hot))
        if prefix.home >= 0:
            expected[prefix.home] = known
        if last >= 0:
            # It served this prompt; if it has started anew since, nothing is left of it.
            expected[last] = 0 if renewed else known
        return expected

    @staticmethod
    def _judged(
        ask: Ask, fleet: FleetView, prefix: _Prefix, expected: Sequence[int], prefill: list[float]
    ) -> list[float]:
        """Return the prefill that a replica is judged by: as if it held what is common."""
        held = list(map(max, expected, prefix.common))
        return prefill if held == expected else fleet.prefills(ask.prompt_tokens, held)

    def _bonus(self, ask: Ask, fleet: FleetView, prefix: _Prefix, told: bool) -> float:
        """Return the seconds granted to the home: a share of computing all that is not common."""
        config = self._config
        share = config.home_bonus_with_digests if told else config.home_bonus
        cost, length = fleet.cost(prefix.home), ask.prompt_tokens
        return share * (cost.seconds(length, prefix.private_from) - cost.seconds(length, length - 1))
