"""affinity: to the replica with the least predicted time to first token, credit for cached prefixes included.

Predicted TTFT is wait + S(L, expected hit), in seconds. The home of a prompt is the ring's for its shallowest
prefix that is not hot, so that conversations stay together and popular prefixes spread; what is known of
residency (digests, and this router's own memory) sharpens the expected hit. Near-ties fall by hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from router.chain.chain import Chain
from router.chain.digest import boundaries
from router.placement.ask import Ask, Choice, Ranking
from router.placement.memory import Memory, Recall
from router.placement.ring import tie_break
from router.placement.view import FleetView, ReplicaView


class Config(BaseModel):
    """Options of affinity. Defaults come from a study in simulation over five request traces."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    use_digests: bool = Field(
        True, description="Read the digests that replicas publish; without, only hashing."
    )
    digest_max_age_seconds: float = Field(
        30, gt=0, le=3600, description="An older digest is no better than none: caches turn over in minutes."
    )
    near_tie_seconds: float = Field(
        0.020, ge=0, le=10, description="Scores closer than this are equal; smaller makes stale routers herd."
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
    evidence_conversations: float = Field(
        32,
        ge=0,
        le=100_000,
        description="Until so many were seen, instructions ahead of the first user message count as hot: a"
        " fresh router then places as one that has watched for hours.",
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
        16_384, ge=64, le=1_000_000, description="Most names remembered, about 250 bytes each; bounds memory."
    )


@dataclass(frozen=True, slots=True)
class _Prefix:
    """What a chain and memory say before replicas are looked at; lengths in tokens."""

    length: int
    known: int
    everywhere: int
    home: str
    second: str


class Policy:
    """One router's view of affinity: options and a memory of its own, shared with nobody."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._memory = Memory(config.remember_names, config.remember_seconds, config.popularity_decay_seconds)

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank by predicted time to first token; the home goes first among near-equals."""
        if not fleet.replicas:
            return ()
        recall = self._memory.recall(ask.chain, now) if ask.chain else Recall()
        key_depth, hot = self._key(ask.chain, recall, len(fleet.replicas), now)
        key = ask.key_at(key_depth)
        prefix = self._prefix(ask, fleet, recall, hot, key)
        depths = boundaries(len(ask.chain.names)) if ask.chain else ()
        choices = [self._choice(ask, replica, prefix, recall, depths, now) for replica in fleet.replicas]

        best = min(score for score, _ in choices)
        near = best + self._config.near_tie_seconds

        def order(scored: tuple[float, Choice]) -> tuple[bool, bool, float, int]:
            score, choice = scored
            tied = score <= near
            return (
                not tied,
                choice.name != prefix.home,
                best if tied else score,
                -tie_break(key, choice.name),
            )

        choices.sort(key=order)
        return tuple(choice for _, choice in choices)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Remember the prompt and who serves it."""
        if ask.chain:
            self._memory.record(ask.chain, self._memory.recall(ask.chain, now), choice.epoch, now)

    def _key(self, chain: Chain | None, recall: Recall, replicas: int, now: float) -> tuple[int, int]:
        """Return the depth of the key, just behind the hot part, and the depth of that part, in blocks."""
        if chain is None:
            return 0, 0
        config = self._config
        hot = self._memory.hot_depth(chain, recall, 1 / replicas, config.least_conversations, now)
        if self._memory.conversations(now) < config.evidence_conversations:
            hot = max(hot, min(chain.preamble_tokens // chain.block_tokens, len(chain.names)))
        return hot + 1, hot

    def _prefix(self, ask: Ask, fleet: FleetView, recall: Recall, hot: int, key: bytes) -> _Prefix:
        alive = {replica.name for replica in fleet.replicas}
        homes = [name for name in fleet.ring.walk(key) if name in alive][:2]
        if recall.depth > hot:
            # A conversation that spilled over is at home where it went, for its cache is there.
            homes = [r.name for r in fleet.replicas if r.epoch == recall.served_by] + homes
        home = homes[0]
        block = ask.chain.block_tokens if ask.chain else 1
        return _Prefix(
            length=ask.prompt_tokens,
            known=recall.depth * block,
            everywhere=min(hot, recall.depth) * block,
            home=home,
            second=next((name for name in homes if name != home), ""),
        )

    def _choice(
        self,
        ask: Ask,
        replica: ReplicaView,
        prefix: _Prefix,
        recall: Recall,
        depths: Sequence[int],
        now: float,
    ) -> tuple[float, Choice]:
        """Return a replica's score in seconds, and its choice."""
        chain = ask.chain
        resident = self._resident_tokens(chain, replica, depths, now)
        if resident is None:
            expected = prefix.everywhere
            if replica.name == prefix.home:
                expected = max(expected, prefix.known)
            elif replica.name == prefix.second:
                expected += int(self._config.second_share * max(0, prefix.known - prefix.everywhere))
            bonus_share, reason = self._config.home_bonus, "ring"
        else:
            expected = resident
            if replica.epoch == recall.served_by and recall.at > replica.digest_at:
                # Served since the digest was made: it cannot tell of that yet.
                expected = max(expected, prefix.known)
            bonus_share, reason = self._config.home_bonus_with_digests, "digest"
        # One token at least is always computed, and blocks hit whole.
        if chain:
            expected = min(expected, (prefix.length - 1) // chain.block_tokens * chain.block_tokens)
        cost = replica.prefill
        wait = replica.load.wait_seconds(now)
        prefill = cost.seconds(prefix.length, expected)
        score = wait + prefill
        if replica.name == prefix.home:
            private = cost.seconds(prefix.length, prefix.everywhere) - cost.seconds(
                prefix.length, prefix.length - 1
            )
            score -= bonus_share * private
            reason = "home"
        return score, Choice(replica.name, replica.epoch, max(0, expected), wait, prefill, reason)

    def _resident_tokens(
        self, chain: Chain | None, replica: ReplicaView, depths: Sequence[int], now: float
    ) -> int | None:
        """Return how many tokens of the prompt the replica's digest holds; None without a usable digest."""
        digest = replica.digest
        if chain is None or digest is None or not self._config.use_digests:
            return None
        if digest.identity != chain.identity or digest.epoch != replica.epoch:
            return None
        if now - replica.digest_at > self._config.digest_max_age_seconds:
            return None
        return digest.deepest(chain.names, depths) * chain.block_tokens
