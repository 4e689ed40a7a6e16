"""affinity: to the replica with the least predicted time to first token, credit for cached prefixes included.

Predicted TTFT is wait + S(L, expected hit), in seconds. A prefix that many conversations share has as many
copies as its share of them needs; the home of a prompt is the ring's choice, among the replicas with copies,
for the first block that is its own. So conversations stay together and popular prefixes spread; what is known
of residency (digests, and this router's own memory) sharpens the expected hit. Near-ties fall by hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil
from operator import add
from typing import NamedTuple

from pydantic import Field

from router.chain.chain import Chain
from router.placement.ask import Ask, Choice, LazyRanking, Order, Ranking
from router.placement.memory import Memory
from router.placement.roster import Roster
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
    """What a chain and memory say before replicas are weighed; lengths in tokens, replicas by place.

    This router sent `known` of the prompt somewhere, last to `last` at `last_at`; if `renewed`, that began
    anew since. `common` is so popular that a replica should hold a copy: each, or only the `holders`, and the
    others then `everywhere` of it. It is not held against one that lacks it, lest the one that had it first
    drew all new conversations. No more than `most` can hit. `home`, `second` and `last` are -1 where there is
    none.
    """

    key: bytes
    known: int
    most: int
    common: int
    everywhere: int
    holders: Sequence[int]
    home: int
    second: int
    last: int
    last_at: float
    renewed: bool


class Policy:
    """One router's view of affinity: options and a memory of its own, shared with nobody."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._memory = Memory(config.remember_names, config.remember_seconds, config.popularity_decay_seconds)

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank by predicted time to first token; the home goes first among near-equals."""
        count = len(fleet.roster.names)
        if not count:
            return ()
        config = self._config
        prefix = self._prefix(ask, fleet.roster, now)
        told = fleet.told_tokens(ask, now - config.digest_max_age_seconds) if config.use_digests else None
        others = fleet.others_factor(config.others_share)
        home = self._unrivalled(ask, fleet, prefix, others, now) if told is None else None
        if home is not None:
            return LazyRanking(
                home, count, lambda: self._weigh(ask, fleet, prefix, None, others, now).order()
            )
        weighed = self._weigh(ask, fleet, prefix, told, others, now)
        return LazyRanking(weighed.choice(weighed.first()), count, weighed.order)

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Remember the prompt and who serves it."""
        self._memory.record(ask, choice.name, choice.epoch, now)

    def _prefix(self, ask: Ask, roster: Roster, now: float) -> _Prefix:
        """Say what is known and common; home is the ring's choice among those that should hold copies."""
        config, chain, members = self._config, ask.chain, roster.members
        slack = config.copies_slack
        recall = self._memory.recall(ask, 1 / (slack * members), 1 / slack, config.least_conversations, now)
        block, everywhere, most = 1, 0, ask.prompt_tokens
        if chain is not None:
            block = chain.block_tokens
            everywhere = max(recall.everywhere_depth, self._preamble_depth(chain))
            if most <= ask.marks.blocks * block:
                # One token at least is always computed, and blocks hit whole.
                most = max(0, most - 1) // block * block
        depth = max(recall.hot_depth, everywhere)
        key = ask.key_at(depth + 1)
        holders: Sequence[int] = ()
        if everywhere < depth and (copies := ceil(slack * recall.hot_share * members)) < members:
            holders = self._holders(ask, roster, depth, copies)
        if holders:
            walked = (roster.places.get(name, -1) for name in roster.ring.walk(key))
            home, second = (*islice((place for place in walked if place in holders), 2), -1, -1)[:2]
        else:
            everywhere = depth
            home, second = roster.ring.first_two(key, roster.places)
        last = roster.places.get(recall.replica, -1)
        return _Prefix(
            key,
            recall.depth * block,
            most,
            depth * block,
            everywhere * block,
            holders,
            home,
            second,
            last,
            recall.at,
            last >= 0 and roster.epochs[last] != recall.epoch,
        )

    @staticmethod
    def _holders(ask: Ask, roster: Roster, depth: int, copies: int) -> Sequence[int]:
        """Return who should hold copies of the first `depth` blocks: the same, whoever of them is dead."""
        walked = islice(roster.ring.walk(ask.key_at(depth)), copies)
        return [roster.places[name] for name in walked if name in roster.places]

    def _preamble_depth(self, chain: Chain) -> int:
        """Return how many blocks lie wholly in a small preamble."""
        if chain.preamble_tokens > self._config.small_preamble_tokens:
            return 0
        return chain.preamble_tokens // chain.block_tokens

    def _unrivalled(
        self, ask: Ask, fleet: FleetView, prefix: _Prefix, others: float, now: float
    ) -> Choice | None:
        """Return the home where it goes first whatever the others are; None where they must be weighed.

        Nobody waits for less than nothing, or holds more than is known or common where no digest tells. So
        it mostly is, unless much is going on.
        """
        home, length, config = prefix.home, ask.prompt_tokens, self._config
        if home < 0:
            return None
        wait = fleet.wait(home, now, others)
        bonus = self._bonus(ask, fleet, prefix, config.home_bonus)
        if wait > bonus + config.near_tie_seconds:
            return None
        expected = 0 if prefix.renewed and home == prefix.last else min(prefix.known, prefix.most)
        prefill = fleet.prefill(home, length, expected)
        judged = prefill if expected >= prefix.common else fleet.prefill(home, length, prefix.common)
        score = judged + wait - bonus
        if score > fleet.least_prefill(length, max(prefix.known, prefix.common)) + config.near_tie_seconds:
            return None
        roster = fleet.roster
        return Choice(roster.names[home], roster.epochs[home], expected, wait, prefill, "home", score)

    def _weigh(
        self,
        ask: Ask,
        fleet: FleetView,
        prefix: _Prefix,
        told: Sequence[int] | None,
        others: float,
        now: float,
    ) -> _Weighed:
        """Weigh every replica; `told` is what digests say it holds, -1 for one that does not."""
        config, home, length = self._config, prefix.home, ask.prompt_tokens
        common = [prefix.everywhere] * len(fleet.roster.names)
        for place in prefix.holders:
            common[place] = prefix.common
        expected = self._expected(fleet, prefix, common, told)
        wait = fleet.waits(now, others)
        held = expected
        if min(expected) < prefix.common:
            held = [hit if hit > copied else copied for hit, copied in zip(expected, common, strict=True)]
        score = list(map(add, fleet.prefills(length, held), wait))
        if home >= 0:
            tells = told is not None and told[home] >= 0
            share = config.home_bonus_with_digests if tells else config.home_bonus
            score[home] -= self._bonus(ask, fleet, prefix, share)
        least = min(score)
        near = least + config.near_tie_seconds
        # A conversation that nobody holds yet may begin anywhere: where least is going on, as it stays there
        # for all its turns. Without digests it must begin at its home, or it would not be found again.
        anywhere = told is not None and min(told) >= 0 and max(expected) <= prefix.common
        if anywhere:
            best = score.index(least)
            near += config.beginning_slack * fleet.prefill(best, length, expected[best])
        return _Weighed(ask, fleet, prefix, told, expected, wait, score, near, anywhere)

    def _expected(
        self, fleet: FleetView, prefix: _Prefix, common: Sequence[int], told: Sequence[int] | None
    ) -> list[int]:
        """Return how many tokens each replica is expected to hold: as it tells, else by a guess."""
        known, last, most = prefix.known, prefix.last, prefix.most
        if told is None:
            expected = self._guessed(prefix, common)
        elif min(told) >= 0:
            expected = list(told)
        else:
            guesses = self._guessed(prefix, common)
            expected = [held if held >= 0 else guess for held, guess in zip(told, guesses, strict=True)]
        if told is not None and last >= 0 and not prefix.renewed and 0 <= told[last] < known:
            told_at = fleet.caches.told_at(fleet.roster.slots[last : last + 1])[0]
            if prefix.last_at > told_at - self._config.digest_lag_seconds:
                # Sent there since the digest was made, or so shortly before that it cannot tell yet.
                expected[last] = known
        return expected if max(expected) <= most else [min(held, most) for held in expected]

    def _guessed(self, prefix: _Prefix, common: Sequence[int]) -> list[int]:
        """Return what replicas are expected to hold that do not tell."""
        known, second = prefix.known, prefix.second
        guesses = [held if held < known else known for held in common]
        if second >= 0:
            hot = guesses[second]
            guesses[second] = hot + int(self._config.second_share * (known - hot))
        if prefix.home >= 0:
            guesses[prefix.home] = known
        if prefix.last >= 0:
            # It served this prompt; if it has started anew since, nothing is left of it.
            guesses[prefix.last] = 0 if prefix.renewed else known
        return guesses

    @staticmethod
    def _bonus(ask: Ask, fleet: FleetView, prefix: _Prefix, share: float) -> float:
        """Return the seconds granted to the home: a share of computing all that is not common."""
        home, length = prefix.home, ask.prompt_tokens
        private = fleet.prefill(home, length, prefix.common) - fleet.prefill(home, length, length - 1)
        return share * private


@dataclass(slots=True)
class _Weighed:
    """The replicas of a view, weighed: by place, what is expected of each, and its score in seconds.

    Scores up to `near` are near-equal. A request that may begin `anywhere` goes where least is going on.
    """

    ask: Ask
    fleet: FleetView
    prefix: _Prefix
    told: Sequence[int] | None
    expected: Sequence[int]
    wait: Sequence[float]
    score: Sequence[float]
    near: float
    anywhere: bool

    def first(self) -> int:
        """Return the best."""
        near, home = self.near, self.prefix.home
        if home >= 0 and self.score[home] <= near and not self.anywhere:
            return home
        tied = [place for place, seconds in enumerate(self.score) if seconds <= near]
        if len(tied) > 1:
            rank = list(map(self._rank, tied))
            first = min(rank)
            tied = [place for place, other in zip(tied, rank, strict=True) if other == first]
        return tied[0] if len(tied) == 1 else min(tied, key=self._chance)

    def order(self) -> Order:
        """Return all, best first, and what makes their choices."""
        places = range(len(self.score))
        return sorted(places, key=lambda place: (self._rank(place), self._chance(place))), self.choice

    def choice(self, place: int) -> Choice:
        """Return what was expected of one."""
        roster = self.fleet.roster
        if place == self.prefix.home:
            reason = "home"
        else:
            reason = "digest" if self.told is not None and self.told[place] >= 0 else "ring"
        return Choice(
            roster.names[place],
            roster.epochs[place],
            self.expected[place],
            self.wait[place],
            self.fleet.prefill(place, self.ask.prompt_tokens, self.expected[place]),
            reason,
            self.score[place],
        )

    def _rank(self, place: int) -> float:
        """Near-equals go first, the home before the others."""
        score = self.score[place]
        if score > self.near:
            return score + _TIED_FIRST
        busy = self.fleet.columns[Column.IN_FLIGHT][place] if self.anywhere else 0.0
        return busy - 0.5 if place == self.prefix.home else busy

    def _chance(self, place: int) -> int:
        """What is left to chance falls by hash."""
        return self.fleet.tie_break(self.prefix.key, place)
