"""A router's soft memory of prompts: how deep a prompt is known, which prefixes are hot, who served it last.

All of it may be lost at any moment: it sharpens decisions and is never needed for them. It is one table of a
fixed size, kept like a processor's cache: a name may stand in either of two places that its hash
picks, and takes the one that was not used for longest.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from math import exp, inf
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from router.chain.chain import Chain
from router.chain.digest import DENSE_TOKENS, boundaries
from router.placement.ask import Ask

# Depths at which a prompt is remembered within its first thousand tokens; beyond, as in a digest. Coarser,
# since most of a chat's names say nothing: where it ends, and where chats part, is kept besides.
_FIRST_MARKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_WAYS = 2
# Lives of replicas' caches that are told apart.
_MOST_LIVES = 2048

# Weights grow by e^(t/tau) instead of all shrinking; past this exponent they are scaled back.
_MAX_EXPONENT = 40.0
# Of two names last used at once the shallower counts as fresher, so that it outlives the other.
_SECONDS_PER_BLOCK = 1e-7

_NOWHERE = -1


class Recall(NamedTuple):
    """What is remembered of a prompt: known to `depth` blocks, sent last, at `at`, to `replica`.

    `epoch` is the life of that replica's cache at the time. `hot_depth` leading blocks are shared by
    `hot_share` of all conversations, `everywhere_depth` by so many that all replicas should hold them.
    """

    depth: int = 0
    at: float = -inf
    replica: str = ""
    epoch: str = ""
    hot_depth: int = 0
    hot_share: float = 0.0
    everywhere_depth: int = 0


_NOTHING = Recall()


class Memory:
    """Names at a few depths of each prompt, and block by block where conversations part.

    Popularity is counted in conversations, not requests: a prompt that continues one counts for nothing, so
    that no conversation makes its own prefix hot, and one whose prefix nobody shares never enters a count.
    """

    def __init__(self, names: int, keep_seconds: float, decay_seconds: float) -> None:
        """Room for `names`, 34 bytes each."""
        self._set_count = sets = -(-names // _WAYS)
        places = sets * _WAYS
        # Columns, as a place is read and written number by number.
        self._names = array("Q", [0]) * places
        self._at = array("d", [-inf]) * places
        # The decayed number of different conversations beyond the first that went through it.
        self._branches = array("f", [0.0]) * places
        # A hash of what stood behind it, unnamed, in the last prompt that ended on it, and how long that was;
        # 0 if none did.
        self._tails = array("I", [0]) * places
        self._tail_bytes = array("H", [0]) * places
        # The name by which the first prompt that went on from that end did so; 0 if none did.
        self._children = array("I", [0]) * places
        # How many blocks behind it, before the next mark, the last prompt ended that did so.
        self._beyond = array("H", [0]) * places
        # Who served it last.
        self._replicas = array("H", [0]) * places
        # Rounds a number as those of `_branches` are.
        self._rounded = array("f", [0.0])
        self._keep = keep_seconds
        self._decay = decay_seconds
        self._start = 0.0
        self._total = 0.0
        self._lives: list[tuple[str, str]] = [("", "")]
        self._life_of: dict[tuple[str, str], int] = {("", ""): 0}

    def recall(self, ask: Ask, hot: float, everywhere: float, least: float, now: float) -> Recall:
        """Return what is known of the prompt. Changes nothing.

        Hot is what a share of `hot` of all conversations have in common, and `least` conversations at least;
        everywhere belongs what a share of `everywhere` have.
        """
        marks, names = ask.marks, ask.marks.first
        last, place = self._last(names, now)
        if last < 0:
            return _NOTHING
        depth, place = self._end(ask, marks.depths[last], place, now)
        replica, epoch = self._lives[self._replicas[place]]
        at = self._at[place]
        # Popularity falls along a chain: where it begins, most need look no further.
        most = self._branches[self._first(names, now)]
        if not most:
            return Recall(depth, at, replica, epoch)
        least *= self._scale(now)
        floor = self._round(max(hot * self._total, least))
        if most < floor:
            return Recall(depth, at, replica, epoch)
        popular, place = self._last(names, now, floor)
        hot_depth = marks.depths[popular]
        # Block by block to where conversations part, so that all turns of one find the same place.
        finer, finer_place = self._last(self._between(ask, popular), now, floor)
        if finer >= 0:
            hot_depth, place = hot_depth + finer + 1, finer_place
        weight = self._branches[place]
        everywhere_depth = 0
        floor = max(everywhere * self._total, least)
        if weight >= floor:
            everywhere_depth = hot_depth
        elif most >= (floor := self._round(floor)):
            everywhere_depth = marks.depths[self._last(names, now, floor)[0]]
        share = weight / self._total if weight else 0.0
        return Recall(depth, at, replica, epoch, hot_depth, share, everywhere_depth)

    def record(self, ask: Ask, replica: str, epoch: str, now: float) -> None:
        """Remember a prompt that `replica` took."""
        chain, marks = ask.chain, ask.marks
        if chain is None or not marks.depths:
            return
        known, continues = self._known(ask, chain, now)
        scale = self._advance(now)
        if not continues:
            self._total += scale
        blocks = marks.blocks
        depths = _depths_to_record(blocks, chain.block_tokens, known, continues)
        places, taken = self._places_for(marks.names(depths), now)
        at, replicas, life = self._at, self._replicas, self._life(replica, epoch)
        for depth, place in zip(depths, places, strict=True):
            at[place] = now - depth * _SECONDS_PER_BLOCK
            replicas[place] = life
        if not continues:
            weight, new = self._round(scale), set(taken)
            for depth, place in zip(depths, places, strict=True):
                if depth > known:
                    break
                # Not those whose place a new name of this prompt has just taken.
                if place not in new:
                    self._branches[place] += weight
        elif known < blocks:
            place = places[depths.index(known)]
            if not self._children[place]:
                self._children[place] = _child(ask, known)
        mark = marks.depths[-1]
        self._beyond[places[-1 if mark == blocks else depths.index(mark)]] = blocks - mark
        tail = chain.data[blocks * chain.block_bytes :]
        self._tails[places[-1]] = _hash(tail)
        self._tail_bytes[places[-1]] = len(tail)

    def _last(self, names: Sequence[int], now: float, floor: float = 0.0) -> tuple[int, int]:
        """Return which of the names is the last that is known and weighs `floor`, and its place; else -1."""
        table, at, branches = self._names, self._at, self._branches
        sets, oldest = self._set_count, now - self._keep
        for index in range(len(names) - 1, -1, -1):
            name = names[index]
            place = name % sets * _WAYS
            if table[place] != name:
                place += 1
                if table[place] != name:
                    continue
            if at[place] >= oldest and branches[place] >= floor:
                return index, place
        return _NOWHERE, _NOWHERE

    def _first(self, names: Sequence[int], now: float) -> int:
        """Return the place of the first of the names that is known."""
        for name in names:
            place = self._last((name,), now)[1]
            if place >= 0:
                break
        return place

    def _end(self, ask: Ask, depth: int, place: int, now: float) -> tuple[int, int]:
        """Return how deep the prompt is known, and its place, where it ended behind its last known mark."""
        deeper = depth + self._beyond[place]
        if depth < deeper <= ask.marks.blocks:
            found = self._last(ask.marks.names((deeper,)), now)[1]
            if found >= 0:
                return deeper, found
        return depth, place

    def _known(self, ask: Ask, chain: Chain, now: float) -> tuple[int, bool]:
        """Return how many blocks of the prompt are known, and whether it goes on from one seen before."""
        marks = ask.marks
        last, place = self._last(marks.first, now)
        if last < 0:
            return 0, False
        known = begin = marks.depths[last]
        continues = self._goes_on(ask, chain, known, place)
        # Between two marks a parting or an end may stand.
        between = self._between(ask, last)
        while between:
            last, place = self._last(between, now)
            if last < 0:
                break
            known = max(known, begin + last + 1)
            continues = continues or self._goes_on(ask, chain, begin + last + 1, place)
            between = between[:last]
        return known, continues

    def _between(self, ask: Ask, mark: int) -> Sequence[int]:
        """Return the names of the prompt behind one of its marks and before the next."""
        marks, depths = ask.marks, ask.marks.depths
        begin, end = depths[mark], depths[mark + 1] - 1 if mark + 1 < len(depths) else marks.blocks
        return marks.between(begin, end) if begin < end else ()

    def _places_for(self, names: Sequence[int], now: float) -> tuple[list[int], list[int]]:
        """Return where each name stands, used now, and which of these places new names have taken.

        A new one takes the place in its set that was not used for longest.
        """
        table, at, sets = self._names, self._at, self._set_count
        places, unknown, taken = [], [], []
        for index, name in enumerate(names):
            place = name % sets * _WAYS
            if table[place] != name:
                place += 1
                if table[place] != name:
                    unknown.append(index)
                    places.append(place - 1)
                    continue
            # Before others take places, lest they take this one.
            at[place] = now
            places.append(place)
        for index in unknown:
            place = places[index]
            place += at[place + 1] < at[place]
            places[index] = place
            taken.append(place)
            table[place] = names[index]
            self._branches[place] = 0.0
            self._tails[place] = 0
            self._children[place] = 0
            self._beyond[place] = 0
        return places, taken

    def _goes_on(self, ask: Ask, chain: Chain, depth: int, place: int) -> bool:
        """Say whether an earlier prompt ended `depth` blocks in, and this one goes on just as it did.

        The first that does is that conversation's next turn; one that goes on otherwise parts from it.
        """
        tail = self._tails[place]
        begin = depth * chain.block_bytes
        if not tail or tail != _hash(chain.data[begin : begin + self._tail_bytes[place]]):
            return False
        child = self._children[place]
        return not child or depth >= ask.marks.blocks or child == _child(ask, depth)

    def _life(self, replica: str, epoch: str) -> int:
        life = self._life_of.get((replica, epoch))
        if life is None:
            if len(self._lives) >= _MOST_LIVES:
                # So many restarts: what is known of who served what is given up once.
                self._replicas = array("H", [0]) * len(self._replicas)
                self._lives = [("", "")]
                self._life_of = {("", ""): 0}
            life = self._life_of[replica, epoch] = len(self._lives)
            self._lives.append((replica, epoch))
        return life

    def _scale(self, now: float) -> float:
        return exp(min((now - self._start) / self._decay, _MAX_EXPONENT))

    def _advance(self, now: float) -> float:
        """Return the weight of one conversation at `now`; scale everything back before it overflows."""
        if now - self._start > self._decay * _MAX_EXPONENT / 2:
            shrink = 1 / self._scale(now)
            self._total *= shrink
            shrink = self._round(shrink)
            self._branches = array("f", [weight * shrink for weight in self._branches])
            self._start = now
        return self._scale(now)

    def _round(self, number: float) -> float:
        self._rounded[0] = number
        return self._rounded[0]


def _depths_to_record(block_count: int, block_tokens: int, known: int, continues: bool) -> Sequence[int]:
    """Return the depths, ascending, at which a prompt is remembered that was known to `known` blocks."""
    usual = _usual_depths(block_count, block_tokens)
    if not known:
        return usual
    following = known + 1
    if known < block_count and not continues:
        # Here conversations part: leave the next one a finer scale to see just where.
        marks = _marks(block_count, block_tokens)
        behind = bisect_left(marks, following)
        following = marks[behind] if behind < len(marks) else block_count + 1
    before, after = bisect_left(usual, known), bisect_left(usual, following)
    return (*usual[:before], *range(known, following), *usual[after:])


@lru_cache(maxsize=1024)
def _usual_depths(block_count: int, block_tokens: int) -> tuple[int, ...]:
    # The last boundary always: there is told where the prompt ended behind it.
    last = boundaries(block_count, block_tokens)[-1:]
    return tuple(sorted({*_marks(block_count, block_tokens), *last, block_count}))


def _hash(data: bytes) -> int:
    """Return 32 bits, never 0."""
    return xxh3_64_intdigest(data) & 0xFFFFFFFF | 1


def _child(ask: Ask, depth: int) -> int:
    """Return 32 bits, never 0, of the name that follows `depth` blocks."""
    return ask.marks.names((depth + 1,))[0] >> 32 | 1


@lru_cache(maxsize=1024)
def _marks(block_count: int, block_tokens: int) -> tuple[int, ...]:
    """Return the depths, ascending, at which a prompt of `block_count` blocks is remembered."""
    dense = DENSE_TOKENS // block_tokens
    first = [depth for depth in _FIRST_MARKS if depth <= min(block_count, dense)]
    return (*first, *(depth for depth in boundaries(block_count, block_tokens) if depth > dense))
