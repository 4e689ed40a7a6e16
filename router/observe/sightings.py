"""Sightings: what one router knows to have been computed, where last, and under which keys; all bounded.

Only to explain misses afterwards: no decision reads it. A newer name may overwrite an older one, at random,
so what was seen long ago counts as new. About 1.2 MB, whatever the traffic.
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from xxhash import xxh3_64

from router.chain.chain import Chain
from router.observe.attribution import Evidence
from router.placement.ask import Ask, Choice
from router.placement.marks import Marks
from router.placement.roster import Roster
from router.placement.view import FleetView

_NAMES = 1 << 16
_NAME_MASK = _NAMES - 1
_PREFIXES = 1 << 14
_PREFIX_MASK = _PREFIXES - 1
# As many as a fleet has replicas at most. Of more, the one that computed nothing for longest is forgotten.
_MOST_LIVES = 1024
# Rosters whose places are kept: each model has one, and each change of who can serve makes another.
_MOST_ROSTERS = 4
# A digest that is older says nothing of now: caches turn over in minutes.
_DIGEST_SECONDS = 30.0
# Data is looked up under other keys block by block up to here, then at depths a quarter apart.
_DENSE_TOKENS = 512


class Sight(NamedTuple):
    """What was known of a prompt when it was decided, whose blocks have `block_tokens`.

    `told` is how many tokens of it each replica's digest holds, -1 where that is not known and None where
    nobody's is, and `told_at` when it was made. Prefixes of `depths` blocks (ascending) were computed before,
    last `at` seconds from `start` by the lives of caches `lives`; `places` are those in the roster of each
    life, -1 for one that is not there any more. A digest shows none of them deeper than `shown` blocks.
    """

    roster: Roster
    block_tokens: int
    told: Sequence[int] | None
    told_at: Sequence[float]
    depths: Sequence[int] = ()
    at: Sequence[float] = ()
    lives: Sequence[int] = ()
    places: Sequence[int] = ()
    shown: int = 0
    start: float = 0.0

    @property
    def seen_tokens(self) -> int:
        """The deepest prefix that was computed anywhere, as far as known."""
        return max(self.noted_tokens, max(self.told, default=0) if self.told else 0)

    @property
    def noted_tokens(self) -> int:
        """The deepest prefix that this router has seen computed."""
        return self.depths[-1] * self.block_tokens if self.depths else 0

    def told_by(self, name: str) -> int | None:
        """Return how many tokens the digest of a replica holds; None where that is not known."""
        place = self.roster.places.get(name)
        if place is None or self.told is None or self.told[place] < 0:
            return None
        return self.told[place]

    def evidence(
        self,
        choice: Choice,
        unreachable: frozenset[str],
        *,
        prompt_tokens: int,
        block_tokens: int,
        hit_tokens: int,
        evicted_tokens: int | None,
        other_keys_tokens: int,
        scale: float,
    ) -> Evidence:
        """Return what speaks for each cause, now that `choice` served it and `unreachable` were out of reach.

        `evicted_tokens` is what the replica told of the tokens right behind the hit, None if it told nothing.
        The replica's tokens are `scale` of the chain's, whose length may be an estimate.
        """
        places = self.roster.places
        chosen = places[choice.name]
        # Those of an earlier ranking may be out of this one's view: then nothing of theirs is told there.
        away = {places[name] for name in unreachable if name != choice.name and name in places}
        promised = elsewhere = departed = lost = 0
        if self.told is not None:
            promised = max(0, self.told[chosen])
            others = list(self.told)
            for place in away:
                departed = max(departed, others[place])
                others[place] = 0
            others[chosen] = 0
            elsewhere = max(0, *others)
        block = self.block_tokens
        for depth, at, life in zip(self.depths, self.at, self.lives, strict=True):
            place = self.places[life]
            if place == chosen and self.told is None:
                continue
            # The deepest of each kind is the last.
            if place < 0 or place in away:
                departed = max(departed, depth * block)
            elif self._lost(place, min(depth, self.shown) * block, at + self.start):
                lost = depth * block
            elif place != chosen:
                elsewhere = max(elsewhere, depth * block)
        evicted = None if evicted_tokens is None else hit_tokens + evicted_tokens
        if (vanished := int(lost * scale)) > (evicted or 0):
            evicted = vanished
        return Evidence(
            prompt_tokens=prompt_tokens,
            block_tokens=block_tokens,
            hit_tokens=hit_tokens,
            # A policy that does not read digests was not misled by one.
            told=int(min(promised, choice.expected_tokens) * scale),
            held_elsewhere=int(elsewhere * scale),
            held_by_departed=int(departed * scale),
            evicted=evicted,
            seen=int(self.seen_tokens * scale),
            seen_other_keys=int(other_keys_tokens * scale),
        )

    def _lost(self, place: int, tokens: int, at: float) -> bool:
        """Say whether a replica's own digest tells that it holds no more what it computed then."""
        return self.told is not None and 0 <= self.told[place] < tokens and self.told_at[place] >= at


class Sightings:
    """Names of computed blocks with who computed them last, and data with the keys it was computed under."""

    def __init__(self) -> None:
        self._names = array("Q", [0]) * _NAMES
        self._holders = array("h", [0]) * _NAMES
        self._at = array("f", [0.0]) * _NAMES
        self._data = array("Q", [0]) * _PREFIXES
        self._under = array("Q", [0]) * _PREFIXES
        # Each life of a replica's cache by a number, last who computed last. Times count from
        # the first sighting.
        self._lives: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._start: float | None = None
        self._places: OrderedDict[Roster, list[int]] = OrderedDict()

    def look(self, ask: Ask, fleet: FleetView, now: float) -> Sight:
        """Return what is known of a prompt now. Changes nothing that is known."""
        chain, roster = ask.chain, fleet.roster
        told = fleet.told_tokens(ask, now - _DIGEST_SECONDS)
        told_at = fleet.caches.told_at(roster.slots) if told is not None else ()
        block = chain.block_tokens if chain is not None else 1
        if self._start is None:
            return Sight(roster, block, told, told_at)
        marks, names, times, holders = ask.marks, self._names, self._at, self._holders
        depths: list[int] = []
        at: list[float] = []
        lives: list[int] = []
        for depth, name in zip(marks.depths, marks.first, strict=True):
            where = name & _NAME_MASK
            if names[where] == name:
                depths.append(depth)
                at.append(times[where])
                lives.append(holders[where])
        if not depths:
            return Sight(roster, block, told, told_at)
        shown = depths[-1]
        beyond = self._beyond(marks, shown)
        if beyond:
            # Between two boundaries: a digest tells of the one before at best.
            name = marks.names((beyond,))[0]
            depths.append(beyond)
            at.append(times[name & _NAME_MASK])
            lives.append(holders[name & _NAME_MASK])
        places = self._places_in(roster)
        return Sight(roster, block, told, told_at, depths, at, lives, places, shown, self._start)

    def note(self, ask: Ask, choice: Choice, now: float, noted_tokens: int = 0) -> int:
        """Note that `choice` has computed a prompt; return how many of its tokens other keys had known.

        That is looked for behind `noted_tokens`, which had been seen under its own keys, and in data alone,
        which is forgotten once an answer has begun.
        """
        chain, marks = ask.chain, ask.marks
        if chain is None or not marks.depths:
            return 0
        if self._start is None:
            self._start = now
        life, at = self._life(choice.name, choice.epoch), now - self._start
        names, holders, times = self._names, self._holders, self._at
        blocks = marks.blocks
        ends = () if marks.depths[-1] == blocks else marks.names((blocks,))
        for name in (*marks.first, *ends):
            where = name & _NAME_MASK
            names[where] = name
            holders[where] = life
            times[where] = at
        return self._note_data(ask, chain, noted_tokens // chain.block_tokens) if chain.data else 0

    def _beyond(self, marks: Marks, deepest: int) -> int:
        """Return the depth of the deepest name known behind a boundary and before the next; 0 if none is."""
        index = bisect(marks.depths, deepest)
        end = marks.depths[index] - 1 if index < len(marks.depths) else marks.blocks
        if end <= deepest:
            return 0
        names = marks.between(deepest, end)
        for further in range(len(names), 0, -1):
            name = names[further - 1]
            if self._names[name & _NAME_MASK] == name:
                return deepest + further
        return 0

    def _note_data(self, ask: Ask, chain: Chain, noted: int) -> int:
        depths = _data_depths(ask.marks.blocks, chain.block_tokens)
        if noted:
            depths = depths[bisect(depths, noted) :]
        if not depths:
            return 0
        data, under, block = self._data, self._under, chain.block_bytes
        prefix = memoryview(chain.data)
        # Another model's KV is no use under any keys.
        running = xxh3_64(f"{chain.identity}\0{ask.model}\0".encode())
        start = others = 0
        for depth, name in zip(depths, ask.marks.names(depths), strict=True):
            end = depth * block
            running.update(prefix[start:end])
            start = end
            key = running.intdigest()
            where = key & _PREFIX_MASK
            if data[where] != key:
                data[where] = key
            elif under[where] != name:
                others = depth
            under[where] = name
        return others * chain.block_tokens

    def _life(self, name: str, epoch: str) -> int:
        life = self._lives.get((name, epoch))
        if life is not None:
            self._lives.move_to_end((name, epoch))
            return life
        if len(self._lives) < _MOST_LIVES:
            life = len(self._lives)
        else:
            # Its number goes to the new one, which has computed nothing of what bears it.
            _, life = self._lives.popitem(last=False)
            for where, holder in enumerate(self._holders):
                if holder == life:
                    self._names[where] = 0
        self._lives[name, epoch] = life
        self._places.clear()
        return life

    def _places_in(self, roster: Roster) -> Sequence[int]:
        """Return the place in the roster of each life, -1 for one that is over or serves another model."""
        places = self._places.get(roster)
        if places is None:
            places = self._places[roster] = [-1] * len(self._lives)
            for place, one in enumerate(zip(roster.names, roster.epochs, strict=True)):
                if (life := self._lives.get(one)) is not None:
                    places[life] = place
            if len(self._places) > _MOST_ROSTERS:
                self._places.popitem(last=False)
        return places


@lru_cache(maxsize=1024)
def _data_depths(block_count: int, block_tokens: int) -> Sequence[int]:
    dense = max(1, _DENSE_TOKENS // block_tokens)
    depths = list(range(1, min(block_count, dense) + 1))
    depth = dense
    while (depth := depth + max(1, depth // 4)) <= block_count:
        depths.append(depth)
    return tuple(depths) if depths[-1] == block_count else (*depths, block_count)
