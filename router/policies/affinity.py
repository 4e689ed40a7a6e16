"""affinity: to the replica with the least predicted time to first token, credit for cached prefixes included.

Predicted TTFT is wait + S(L, expected hit), in seconds. The home of a prompt is the ring's for its shallowest
block that is neither hot nor within a small preamble, so that conversations stay together and popular
prefixes spread; what is known of residency (digests, and this router's own memory) sharpens the expected hit.
Near-ties fall by hash.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    beginning_slack: float = Field(
        1.0,
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
        120_000, ge=64, le=10_000_000, description="Names remembered, 32 bytes each; 120,000 take 3.8 MB."
    )


@dataclass(frozen=True, slots=True)
class _Prefix:
    """What a chain and memory say before replicas are looked at; lengths in tokens, replicas by place.

    `known` was sent somewhere by this router; `hot` is known and so popular that all replicas should hold it.
    `common` is not held against a replica that lacks it: hot parts and small preambles are copied, lest one
    replica that had them first drew all new conversations. `home` and `second` are -1 where there is none.
    """

    key: bytes
    known: int
    hot: int
    common: int
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
        expected, told = self._expected(ask, fleet, prefix, recall, now)
        wait = fleet.wait_seconds(now)
        prefill = fleet.prefill_seconds(ask.prompt_tokens, expected)
        score = wait + fleet.prefill_seconds(ask.prompt_tokens, np.maximum(expected, prefix.common))
        if prefix.home >= 0:
            score[prefix.home] -= self._bonus(ask, fleet, prefix, bool(told[prefix.home]))

        best = int(score.argmin())
        near = float(score[best]) + config.near_tie_seconds
        # A conversation that nobody holds yet may begin anywhere: where least is going on, as it stays there
        # for all its turns. Without digests it must begin at its home, or it would not be found again.
        anywhere = bool(told.all()) and int(expected.max()) <= prefix.common
        if anywhere:
            near += config.beginning_slack * float(prefill[best])
        # Near-equals go first, the home before the others; what is left to chance falls by hash.
        tied = score <= near
        rank = np.where(tied, fleet.table[Column.IN_FLIGHT] if anywhere else 0.0, score + _TIED_FIRST)
        if prefix.home >= 0 and tied[prefix.home]:
            rank[prefix.home] -= 0.5
        places = np.lexsort((fleet.tie_breaks(prefix.key), rank)).tolist()

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

        return LazyRanking(places, choice)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Remember the prompt and who serves it."""
        recall = self._recall(ask, 1, now)
        self._memory.record(ask, recall, choice.name, choice.epoch, now)

    def _recall(self, ask: Ask, members: int, now: float) -> Recall:
        """Return what is known of the prompt; hot is what is more than one replica's share."""
        return self._memory.recall(ask, 1 / members, self._config.least_conversations, now)

    def _prefix(self, ask: Ask, fleet: FleetView, recall: Recall) -> _Prefix:
        chain = ask.chain
        hot = recall.hot_depth
        common = max(hot, self._preamble_depth(chain)) if chain else 0
        key = ask.key_at(common + 1)
        places = fleet.places
        alive = (places[name] for name in fleet.ring.walk(key) if name in places)
        block = chain.block_tokens if chain else 1
        return _Prefix(
            key, recall.depth * block, hot * block, common * block, next(alive, -1), next(alive, -1)
        )

    def _preamble_depth(self, chain: Chain) -> int:
        """Return how many blocks lie wholly in a small preamble."""
        if chain.preamble_tokens > self._config.small_preamble_tokens:
            return 0
        return chain.preamble_tokens // chain.block_tokens

    def _expected(
        self, ask: Ask, fleet: FleetView, prefix: _Prefix, recall: Recall, now: float
    ) -> tuple[Tokens, npt.NDArray[np.bool_]]:
        """Return the tokens that each replica is expected to hold, and whether its digest told so."""
        config = self._config
        expected = np.full(len(fleet), prefix.hot, dtype=np.int64)
        if prefix.second >= 0:
            expected[prefix.second] = prefix.hot + int(config.second_share * (prefix.known - prefix.hot))
        if prefix.home >= 0:
            expected[prefix.home] = prefix.known
        last = fleet.places.get(recall.server, -1)
        renewed = last >= 0 and fleet.epochs[last] != recall.epoch
        if last >= 0:
            # It served this prompt; if it has started anew since, nothing is left of it.
            expected[last] = 0 if renewed else prefix.known
        told = np.zeros(len(fleet), dtype=np.bool_)
        if config.use_digests:
            held = fleet.held_tokens(ask, now - config.digest_max_age_seconds)
            told = held >= 0
            expected = np.where(told, held, expected)
            if last >= 0 and not renewed:
                told_at = fleet.caches.told_at(fleet.roster.slots[last : last + 1])[0]
                if recall.at > told_at - config.digest_lag_seconds:
                    # Sent there since the digest was made, or so shortly before that it cannot tell yet.
                    expected[last] = max(int(expected[last]), prefix.known)
        if ask.chain:
            # One token at least is always computed, and blocks hit whole.
            block = ask.chain.block_tokens
            np.minimum(expected, (ask.prompt_tokens - 1) // block * block, out=expected)
        return expected, told

    def _bonus(self, ask: Ask, fleet: FleetView, prefix: _Prefix, told: bool) -> float:
        """Return the seconds granted to the home: a share of computing all that is not common."""
        config = self._config
        share = config.home_bonus_with_digests if told else config.home_bonus
        cost = PrefillCost(*fleet.table[Column.BASE_SECONDS :, prefix.home].tolist())
        length = ask.prompt_tokens
        return share * (cost.seconds(length, prefix.common) - cost.seconds(length, length - 1))
