"""A router's soft memory of prompts: how deep a prompt is known, which prefixes are hot, who served it last.

All of it may be lost at any moment: it sharpens decisions and is never needed for them. It is one table of a
fixed size, kept like a processor's cache: a name may stand in either of two places that its hash
picks, and takes the one that was not used for longest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from router.chain.chain import Chain
from router.chain.digest import DENSE_TOKENS, boundaries, name_halves
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

_ENTRY = np.dtype(
    [
        ("name", "<u8"),
        ("at", "<f8"),
        # The decayed number of different conversations beyond the first that went through it.
        ("branches", "<f4"),
        # A hash of what stood behind it, unnamed, in the last prompt that ended on it, and how long that was;
        # 0 if none did.
        ("tail", "<u4"),
        ("tail_bytes", "<u2"),
        # The name by which the first prompt that went on from that end did so; 0 if none did.
        ("child", "<u4"),
        # How many blocks behind it, before the next mark, the last prompt ended that did so.
        ("beyond", "<u2"),
        # Who served it last.
        ("replica", "<u2"),
    ]
)

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recall:
    """What is remembered of a prompt: known to `depth` blocks, sent last, at `at`, to `replica`.

    `epoch` is the life of that replica's cache at the time. `hot_depth` leading blocks are shared by
    `hot_share` of all conversations, `everywhere_depth` by so many that all replicas should hold them.
    """

    depth: int = 0
    at: float = float("-inf")
    replica: str = ""
    epoch: str = ""
    hot_depth: int = 0
    hot_share: float = 0.0
    everywhere_depth: int = 0


_NOTHING = Recall()
_NOWHERE: Positions = np.empty(0, dtype=np.int64)


class Memory:
    """Names at a few depths of each prompt, and block by block where conversations part.

    Popularity is counted in conversations, not requests: a prompt that continues one counts for nothing, so
    that no conversation makes its own prefix hot, and one whose prefix nobody shares never enters a count.
    """

    def __init__(self, names: int, keep_seconds: float, decay_seconds: float) -> None:
        """Room for `names`, 34 bytes each."""
        sets = -(-names // _WAYS)
        table = {field: np.zeros(sets * _WAYS, dtype=_ENTRY[field]) for field in _ENTRY.names or ()}
        self._names = table["name"]
        self._at = table["at"]
        self._branches = table["branches"]
        self._tails = table["tail"]
        self._tail_bytes = table["tail_bytes"]
        self._children = table["child"]
        self._beyond = table["beyond"]
        self._replicas = table["replica"]
        self._at.fill(-np.inf)
        self._sets = self._names.reshape(sets, _WAYS)
        self._set_count = np.uint64(sets)
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
        chain = ask.chain
        if chain is None or not len(ask.marks.depths):
            return _NOTHING
        depths, names = ask.marks.depths, ask.marks.first
        places = self._find(names)
        fresh = self._fresh(places, names, now).nonzero()[0]
        if not len(fresh):
            return _NOTHING
        depth, place = self._end(ask, int(depths[fresh[-1]]), int(places[fresh[-1]]), now)
        replica, epoch = self._lives[self._replicas[place]]
        hot_depth, weight, everywhere_depth = 0, 0.0, 0
        least *= self._scale(now)
        floor = max(hot * self._total, least)
        weights = self._branches[places[fresh]]
        if weights[0] >= floor:
            popular = int((weights >= floor).nonzero()[0][-1])
            hot_depth, weight = int(depths[fresh[popular]]), float(weights[popular])
            # Block by block to where conversations part, so that all turns of one find the same place.
            between, found = self._between(ask, int(fresh[popular]), now)
            if len(found):
                finer = self._branches[found]
                hotter = (finer >= floor).nonzero()[0]
                if len(hotter):
                    hot_depth, weight = int(between[hotter[-1]]), float(finer[hotter[-1]])
            floor = max(everywhere * self._total, least)
            if weight >= floor:
                everywhere_depth = hot_depth
            elif weights[0] >= floor:
                everywhere_depth = int(depths[fresh[(weights >= floor).nonzero()[0][-1]]])
        share = weight / self._total if weight else 0.0
        at = float(self._at[place])
        return Recall(depth, at, replica, epoch, hot_depth, share, everywhere_depth)

    def record(self, ask: Ask, replica: str, epoch: str, now: float) -> None:
        """Remember a prompt that `replica` took."""
        chain = ask.chain
        if chain is None or not chain.names:
            return
        known, continues = self._known(ask, now)
        scale = self._advance(now)
        if not continues:
            self._total += scale
        depths = np.array(_depths_to_record(chain, known, continues), dtype=np.int64)
        names, _ = name_halves([chain.names[depth - 1] for depth in depths.tolist()])
        places = self._find(names)
        there = self._names[places] == names
        # Before others take places, lest they take those.
        self._at[places[there]] = now
        self._claim(places, names, ~there)
        self._at[places] = now - depths * _SECONDS_PER_BLOCK
        self._replicas[places] = self._life(replica, epoch)
        if not continues:
            # Not those whose place a new name of this prompt has just taken.
            there &= self._names[places] == names
            self._branches[places[there & (depths <= known)]] += np.float32(scale)
        elif known < len(chain.names):
            place = places[depths.searchsorted(known)]
            if not self._children[place]:
                self._children[place] = _child(chain, known)
        mark = ask.marks.depths[-1]
        self._beyond[places[depths.searchsorted(mark)]] = depths[-1] - mark
        self._tails[places[-1]] = _hash(chain.remainder)
        self._tail_bytes[places[-1]] = len(chain.remainder)

    def _end(self, ask: Ask, depth: int, place: int, now: float) -> tuple[int, int]:
        """Return how deep the prompt is known, and its place, where it ended behind its last known mark."""
        deeper = depth + int(self._beyond[place])
        names = ask.chain.names if ask.chain else ()
        if depth < deeper <= len(names):
            name = int.from_bytes(names[deeper - 1][:8], "little")
            found = name % len(self._sets) * _WAYS
            found += int(self._names[found + 1]) == name
            if int(self._names[found]) == name and self._at[found] >= now - self._keep:
                return deeper, found
        return depth, place

    def _known(self, ask: Ask, now: float) -> tuple[int, bool]:
        """Return how many blocks of the prompt are known, and whether it goes on from one seen before."""
        chain, marks = ask.chain, ask.marks
        places = self._find(marks.first)
        fresh = self._fresh(places, marks.first, now).nonzero()[0]
        if chain is None or not len(fresh):
            return 0, False
        last = int(fresh[-1])
        depth = int(marks.depths[last])
        continues = self._goes_on(chain, depth, int(places[last]))
        # Between two marks a parting or an end may stand.
        between, found = self._between(ask, last, now)
        for depth, place in zip(between.tolist(), found.tolist(), strict=True):
            continues = continues or self._goes_on(chain, depth, place)
        return depth, continues

    def _between(self, ask: Ask, mark: int, now: float) -> tuple[Positions, Positions]:
        """Return the depths, and their places, remembered of the prompt between a mark and the next."""
        depths = ask.marks.depths
        names = ask.chain.names if ask.chain else ()
        begin = int(depths[mark])
        end = int(depths[mark + 1]) - 1 if mark + 1 < len(depths) else len(names)
        if end <= begin:
            return _NOWHERE, _NOWHERE
        hashes, _ = name_halves(names[begin:end])
        places = self._find(hashes)
        fresh = self._fresh(places, hashes, now).nonzero()[0]
        return fresh + begin + 1, places[fresh]

    def _find(self, names: npt.NDArray[np.uint64]) -> Positions:
        """Return where each name stands; where it does not, some place of another."""
        sets = (names % self._set_count).astype(np.int64)
        places: Positions = sets * _WAYS
        places += self._sets[sets, 1] == names
        return places

    def _fresh(self, places: Positions, names: npt.NDArray[np.uint64], now: float) -> npt.NDArray[np.bool_]:
        fresh: npt.NDArray[np.bool_] = (self._names[places] == names) & (self._at[places] >= now - self._keep)
        return fresh

    def _claim(self, places: Positions, names: npt.NDArray[np.uint64], new: npt.NDArray[np.bool_]) -> None:
        """Give every new name the place in its set that was not used for longest; `places` is changed."""
        sets = places[new] // _WAYS
        taken = sets * _WAYS
        taken += self._at[taken + 1] < self._at[taken]
        places[new] = taken
        self._names[taken] = names[new]
        self._branches[taken] = 0.0
        self._tails[taken] = 0
        self._children[taken] = 0
        self._beyond[taken] = 0

    def _goes_on(self, chain: Chain, depth: int, place: int) -> bool:
        """Say whether an earlier prompt ended `depth` blocks in, and this one goes on just as it did.

        The first that does is that conversation's next turn; one that goes on otherwise parts from it.
        """
        tail = int(self._tails[place])
        begin = depth * chain.block_bytes
        if not tail or tail != _hash(chain.data[begin : begin + int(self._tail_bytes[place])]):
            return False
        child = int(self._children[place])
        return not child or depth >= len(chain.names) or child == _child(chain, depth)

    def _life(self, replica: str, epoch: str) -> int:
        life = self._life_of.get((replica, epoch))
        if life is None:
            if len(self._lives) >= _MOST_LIVES:
                # So many restarts: what is known of who served what is given up once.
                self._replicas.fill(0)
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
            self._branches *= np.float32(shrink)
            self._start = now
        return self._scale(now)


def _depths_to_record(chain: Chain, known: int, continues: bool) -> list[int]:
    count = len(chain.names)
    marks = _marks(count, chain.block_tokens)
    # The last boundary always: there is told where the prompt ended behind it.
    depths = {*marks, *boundaries(count, chain.block_tokens)[-1:], count}
    if known:
        depths.add(known)
        if known < count and not continues:
            # Here conversations part: leave the next one a finer scale to see just where.
            following = next((mark for mark in marks if mark > known), count + 1)
            depths.update(range(known + 1, following))
    return sorted(depths)


def _hash(data: bytes) -> int:
    """Return 32 bits, never 0."""
    return xxh3_64_intdigest(data) & 0xFFFFFFFF | 1


def _child(chain: Chain, depth: int) -> int:
    """Return 32 bits, never 0, of the name that follows `depth` blocks."""
    return int.from_bytes(chain.names[depth][:4], "big") | 1


@lru_cache(maxsize=1024)
def _marks(block_count: int, block_tokens: int) -> tuple[int, ...]:
    """Return the depths, ascending, at which a prompt of `block_count` blocks is remembered."""
    dense = DENSE_TOKENS // block_tokens
    first = [depth for depth in _FIRST_MARKS if depth <= min(block_count, dense)]
    return (*first, *(depth for depth in boundaries(block_count, block_tokens) if depth > dense))
