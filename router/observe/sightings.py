"""Sightings: what one router knows to have been computed, where last, and under which keys; all bounded.

Only to explain misses afterwards: no decision reads it. A newer name may overwrite an older one, at random,
so what was seen long ago counts as new. About 1.2 MB, whatever the traffic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64

from router.chain.chain import Chain
from router.observe.attribution import Evidence
from router.placement.ask import Ask, Choice
from router.placement.view import FleetView, Floats, Roster, Tokens

_NAMES = 1 << 16
_PREFIXES = 1 << 14
# As many as a fleet has replicas at most. Of more, the one that computed nothing for longest is forgotten.
_MOST_LIVES = 1024
# Rosters whose places are kept: each model has one, and each change of who can serve makes another.
_MOST_ROSTERS = 4
# A digest that is older says nothing of now: caches turn over in minutes.
_DIGEST_SECONDS = 30.0
# Data is looked up under other keys block by block up to here, then at depths a quarter apart.
_DENSE_BLOCKS = 32

_Marks = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """What was known of a prompt when it was decided; depths in tokens of its chain.

    `told` is what each replica's digest holds of it, -1 where that is not known, and `told_at` when it was
    made. `depths` (ascending) were computed before, last at `at` by `places` in the view (-1 for a life of a
    cache that is not there any more); a digest shows that if it holds `floors`.
    """

    roster: Roster
    told: Tokens
    told_at: Floats
    depths: Tokens
    floors: Tokens
    at: Floats
    places: Tokens

    @property
    def seen_tokens(self) -> int:
        """The deepest prefix that was computed anywhere, as far as known."""
        return max(self.noted_tokens, int(self.told.max(initial=0)))

    @property
    def noted_tokens(self) -> int:
        """The deepest prefix that this router has seen computed."""
        return int(self.depths[-1]) if len(self.depths) else 0

    def told_by(self, name: str) -> int | None:
        """Return how many tokens the digest of a replica holds; None where that is not known."""
        place = self.roster.places.get(name)
        return int(self.told[place]) if place is not None and self.told[place] >= 0 else None

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
        chosen = self.roster.places[choice.name]
        others = self.told.copy()
        others[chosen] = -1
        departed = 0
        away = self.places < 0
        for name in unreachable:
            if name != choice.name:
                place = self.roster.places[name]
                departed = max(departed, int(others[place]))
                others[place] = -1
                away |= self.places == place
        elsewhere = max(0, int(others.max(initial=0)))
        evicted = None if evicted_tokens is None else hit_tokens + evicted_tokens
        if len(self.depths):
            known = self.told[self.places]
            lost = (known >= 0) & (known < self.floors) & (self.told_at[self.places] >= self.at) & ~away
            here = ~(away | lost | (self.places == chosen))
            elsewhere = max(elsewhere, _deepest(self.depths, here))
            departed = max(departed, _deepest(self.depths, away))
            if (vanished := int(_deepest(self.depths, lost) * scale)) > (evicted or 0):
                # Its holder's own digest says that it is not there any more.
                evicted = vanished
        return Evidence(
            prompt_tokens=prompt_tokens,
            block_tokens=block_tokens,
            hit_tokens=hit_tokens,
            # A policy that does not read digests was not misled by one.
            told=int(min(max(0, int(self.told[chosen])), choice.expected_tokens) * scale),
            held_elsewhere=int(elsewhere * scale),
            held_by_departed=int(departed * scale),
            evicted=evicted,
            seen=int(self.seen_tokens * scale),
            seen_other_keys=int(other_keys_tokens * scale),
        )


class Sightings:
    """Names of computed blocks with who computed them last, and data with the keys it was computed under."""

    def __init__(self) -> None:
        self._marks: _Marks = np.zeros(_NAMES, dtype=np.uint64)
        self._holders = np.zeros(_NAMES, dtype=np.int16)
        self._at = np.zeros(_NAMES, dtype=np.float32)
        self._data: _Marks = np.zeros(_PREFIXES, dtype=np.uint64)
        self._under: _Marks = np.zeros(_PREFIXES, dtype=np.uint64)
        # Each life of a replica's cache by a number, last who computed last. Times count from
        # the first sighting.
        self._lives: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._start: float | None = None
        self._places: OrderedDict[Roster, Tokens] = OrderedDict()

    def look(self, ask: Ask, fleet: FleetView, now: float) -> Sight:
        """Return what is known of a prompt now. Changes nothing that is known."""
        chain, found = ask.chain, _NOTHING
        depths = floors = found
        if chain is not None and self._start is not None:
            marks = ask.marks
            places = _place(marks.first, _NAMES)
            known = np.flatnonzero(self._marks[places] == marks.first)
            found, depths = places[known], marks.depths[known]
            floors = depths
            if len(depths):
                deepest = int(depths[-1])
                beyond = self._beyond(chain, ask, deepest, int(known[-1]))
                if beyond is not None:
                    # Between two boundaries: a digest tells of the one before at best.
                    found, floors = np.append(found, beyond[1]), np.append(floors, deepest)
                    depths = np.append(depths, beyond[0])
        block = chain.block_tokens if chain else 1
        return Sight(
            roster=fleet.roster,
            told=fleet.held_tokens(ask, now - _DIGEST_SECONDS),
            told_at=fleet.caches.told_at(fleet.roster.slots),
            depths=depths * block,
            floors=floors * block,
            at=self._at[found].astype(np.float64) + (self._start or 0.0),
            places=self._places_in(fleet.roster)[self._holders[found]] if len(found) else _NOTHING,
        )

    def note(self, ask: Ask, choice: Choice, now: float, noted_tokens: int = 0) -> int:
        """Note that `choice` has computed a prompt; return how many of its tokens other keys had known.

        That is looked for behind `noted_tokens`, which had been seen under its own keys.
        """
        chain = ask.chain
        if chain is None or not chain.names:
            return 0
        if self._start is None:
            self._start = now
        life = self._life(choice.name, choice.epoch)
        marks = np.append(ask.marks.first, _first(chain.names[-1:]))
        places = _place(marks, _NAMES)
        self._marks[places] = marks
        self._holders[places] = life
        self._at[places] = now - self._start
        return self._note_data(ask.model, chain, noted_tokens // chain.block_tokens)

    def _beyond(self, chain: Chain, ask: Ask, deepest: int, index: int) -> tuple[int, int] | None:
        """Return the depth, in blocks, and the place of the deepest name known before the next boundary."""
        following = ask.marks.depths[index + 1] if index + 1 < len(ask.marks.depths) else len(chain.names) + 1
        if following - deepest <= 1:
            return None
        first = _first(chain.names[deepest : following - 1])
        places = _place(first, _NAMES)
        known = np.flatnonzero(self._marks[places] == first)
        return (deepest + int(known[-1]) + 1, int(places[known[-1]])) if len(known) else None

    def _note_data(self, model: str, chain: Chain, noted: int) -> int:
        depths = [depth for depth in _data_depths(len(chain.names)) if depth > noted]
        if not depths:
            return 0
        data = memoryview(chain.data)
        # Another model's KV is no use under any keys.
        running = xxh3_64(f"{chain.identity}\0{model}\0".encode())
        hashes, start = [], 0
        for depth in depths:
            end = depth * chain.block_bytes
            running.update(data[start:end])
            hashes.append(running.intdigest())
            start = end
        keys = np.array(hashes, dtype=np.uint64)
        names = _first([chain.names[depth - 1] for depth in depths])
        places = _place(keys, _PREFIXES)
        others = np.flatnonzero((self._data[places] == keys) & (self._under[places] != names))
        self._data[places] = keys
        self._under[places] = names
        return depths[others[-1]] * chain.block_tokens if len(others) else 0

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
            self._marks[self._holders == life] = 0
        self._lives[name, epoch] = life
        self._places.clear()
        return life

    def _places_in(self, roster: Roster) -> Tokens:
        """Return the place in the roster of each life, -1 for one that is over or serves another model."""
        places = self._places.get(roster)
        if places is None:
            places = self._places[roster] = np.full(len(self._lives), -1, dtype=np.int64)
            for place, one in enumerate(zip(roster.names, roster.epochs, strict=True)):
                if (life := self._lives.get(one)) is not None:
                    places[life] = place
            if len(self._places) > _MOST_ROSTERS:
                self._places.popitem(last=False)
        return places


_NOTHING: Tokens = np.empty(0, dtype=np.int64)


def _first(names: Sequence[bytes]) -> _Marks:
    """Return the first eight bytes of each name (all of one length)."""
    return np.frombuffer(b"".join(names), dtype="<u8").reshape(len(names), -1)[:, 0].astype(np.uint64)


def _place(marks: _Marks, size: int) -> Tokens:
    return (marks & np.uint64(size - 1)).astype(np.int64)


def _deepest(depths: Tokens, held: npt.NDArray[np.bool_]) -> int:
    """Return the last of the ascending depths that is held, 0 if none is."""
    indices = held.nonzero()[0]
    return int(depths[indices[-1]]) if len(indices) else 0


@lru_cache(maxsize=1024)
def _data_depths(block_count: int) -> Sequence[int]:
    depths = list(range(1, min(block_count, _DENSE_BLOCKS) + 1))
    depth = _DENSE_BLOCKS
    while (depth := depth + depth // 4) <= block_count:
        depths.append(depth)
    return tuple(depths) if depths[-1] == block_count else (*depths, block_count)
