"""affinity: to the replica with the least predicted time to first token, credit for cached prefixes included.

Predicted TTFT is wait + S(L, expected hit), in seconds. The home of a prompt is the ring's for its shallowest
block that is neither hot nor within a small preamble, so that conversations stay together and popular
prefixes spread; what is known of residency (digests, and this router's own memory) sharpens the expected hit.
Near-ties fall by hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from router.chain.chain import Chain
from router.chain.digest import boundaries
from router.placement.ask import Ask, Choice, Ranking
from router.placement.memory import Memory, Recall
from router.placement.ring import tie_break
from router.placement.view import FleetView, ReplicaView
from router.settings import Options


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
        16_384, ge=64, le=1_000_000, description="Most names remembered, about 660 bytes each; bounds memory."
    )


@dataclass(frozen=True, slots=True)
class _Prefix:
    """What a chain and memory say before replicas are looked at; lengths in tokens.

    `known` was sent somewhere by this router; `hot` is known and so popular that all replicas should hold it.
    `common` is not held against a replica that lacks it: hot parts and small preambles are copied, lest one
    replica that had them first drew all new conversations.
    """

    length: int
    known: int
    hot: int
    common: int
    home: str
    second: str


@dataclass(frozen=True, slots=True)
class _Scored:
    """A replica's predicted time to first token, less the home's bonus; `told` where its digest was read."""

    seconds: float
    choice: Choice
    in_flight: int
    told: bool


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
        hot = self._hot_depth(ask.chain, recall, fleet.members or len(fleet.replicas), now)
        common = max(hot, self._preamble_depth(ask.chain))
        key = ask.key_at(common + 1)
        prefix = self._prefix(ask, fleet, recall.depth, hot, common, key)
        depths = boundaries(len(ask.chain.names)) if ask.chain else ()
        scored = [self._score(ask, replica, prefix, recall, depths, now) for replica in fleet.replicas]

        best = min(scored, key=lambda one: one.seconds)
        near = best.seconds + self._config.near_tie_seconds
        # A conversation that nobody holds yet may begin anywhere: where least is going on, as it stays there
        # for all its turns. Without digests it must begin at its home, or it would not be found again.
        anywhere = all(one.told and one.choice.expected_tokens <= prefix.common for one in scored)
        if anywhere:
            near += self._config.beginning_slack * best.choice.prefill_seconds

        def order(one: _Scored) -> tuple[bool, float, bool, int]:
            tied = one.seconds <= near
            first = (one.in_flight if anywhere else 0) if tied else one.seconds
            return (not tied, first, one.choice.name != prefix.home, -tie_break(key, one.choice.name))

        return tuple(one.choice for one in sorted(scored, key=order))

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Remember the prompt and who serves it."""
        if ask.chain:
            recall = self._memory.recall(ask.chain, now)
            self._memory.record(ask.chain, recall, choice.name, choice.epoch, now)

    def _hot_depth(self, chain: Chain | None, recall: Recall, members: int, now: float) -> int:
        """Return how many leading blocks more conversations share than one replica should serve."""
        if chain is None:
            return 0
        return self._memory.hot_depth(chain, recall, 1 / members, self._config.least_conversations, now)

    def _preamble_depth(self, chain: Chain | None) -> int:
        """Return how many blocks lie wholly in a small preamble."""
        if chain is None or chain.preamble_tokens > self._config.small_preamble_tokens:
            return 0
        return chain.preamble_tokens // chain.block_tokens

    def _prefix(self, ask: Ask, fleet: FleetView, known: int, hot: int, common: int, key: bytes) -> _Prefix:
        alive = {replica.name for replica in fleet.replicas}
        home, *others = [name for name in fleet.ring.walk(key) if name in alive][:2]
        block = ask.chain.block_tokens if ask.chain else 1
        return _Prefix(
            length=ask.prompt_tokens,
            known=known * block,
            hot=hot * block,
            common=common * block,
            home=home,
            second=others[0] if others else "",
        )

    def _score(
        self,
        ask: Ask,
        replica: ReplicaView,
        prefix: _Prefix,
        recall: Recall,
        depths: Sequence[int],
        now: float,
    ) -> _Scored:
        """Return what is expected of a replica."""
        chain = ask.chain
        resident = self._resident_tokens(chain, replica, depths, now)
        if resident is None:
            expected = self._guess(replica, prefix, recall)
            bonus_share, reason = self._config.home_bonus, "ring"
        else:
            expected = resident
            if (
                replica.epoch == recall.epoch
                and recall.at > replica.digest_at - self._config.digest_lag_seconds
            ):
                # Sent there since the digest was made, or so shortly before that it cannot tell yet.
                expected = max(expected, prefix.known)
            bonus_share, reason = self._config.home_bonus_with_digests, "digest"
        # One token at least is always computed, and blocks hit whole.
        if chain:
            expected = min(expected, (prefix.length - 1) // chain.block_tokens * chain.block_tokens)
        cost = replica.prefill
        wait = replica.load.wait_seconds(now)
        score = wait + cost.seconds(prefix.length, max(expected, prefix.common))
        if replica.name == prefix.home:
            private = cost.seconds(prefix.length, prefix.common)
            score -= bonus_share * (private - cost.seconds(prefix.length, prefix.length - 1))
            reason = "home"
        prefill = cost.seconds(prefix.length, expected)
        choice = Choice(replica.name, replica.epoch, expected, wait, prefill, reason)
        return _Scored(score, choice, replica.load.in_flight, told=resident is not None)

    def _guess(self, replica: ReplicaView, prefix: _Prefix, recall: Recall) -> int:
        """Return the tokens that a replica without a digest is expected to hold."""
        if replica.epoch == recall.epoch:
            return prefix.known
        if replica.name == recall.server:
            # It served this prompt, and has started anew since.
            return 0
        if replica.name == prefix.home:
            return prefix.known
        if replica.name == prefix.second:
            return prefix.hot + int(self._config.second_share * (prefix.known - prefix.hot))
        return prefix.hot

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
