"""A router's soft memory of prompts: how deep a prompt is known, which prefixes are hot, who served it last.

All of it may be lost at any moment: it sharpens decisions and is never needed for them. It is one table of a
fixed size, kept like a processor's cache: a name may stand in any of a few places that its hash picks, and
takes the one that was not used for longest.
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
_WAYS = 8

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
        # Who served it last.
        ("server", "<u2"),
    ]
)

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recall:
    """What is remembered of a prompt: known to `depth` blocks, sent last, at `at`, to the replica `server`.

    `epoch` is the life of that replica's cache at the time. `continues` is true where the prompt goes on from
    one seen before, not merely shares a beginning with one. `hot_depth` leading blocks are common to many.
    """

    depth: int = 0
    at: float = float("-inf")
    server: str = ""
    epoch: str = ""
    continues: bool = False
    hot_depth: int = 0


_NOTHING = Recall()
_NOWHERE: Positions = np.empty(0, dtype=np.int64)


class Memory:
    """Names at a few depths of each prompt, and block by block where conversations part.

    Popularity is counted in conversations, not requests: a prompt that continues one counts for nothing, so
    that no conversation makes its own prefix hot, and one whose prefix nobody shares never enters a count.
    """

    def __init__(self, names: int, keep_seconds: float, decay_seconds: float) -> None:
        """Room for `names`, 32 bytes each."""
        sets = -(-names // _WAYS)
        table = {field: np.zeros(sets * _WAYS, dtype=_ENTRY[field]) for field in _ENTRY.names or ()}
        self._names = table["name"]
        self._at = table["at"]
        self._branches = table["branches"]
        self._tails = table["tail"]
        self._tail_bytes = table["tail_bytes"]
        self._children = table["child"]
        self._servers = table["server"]
        self._at.fill(-np.inf)
        self._sets = self._names.reshape(sets, _WAYS)
        self._set_count = np.uint64(sets)
        self._keep = keep_seconds
        self._decay = decay_seconds
        self._start = 0.0
        self._total = 0.0
        self._lives: list[tuple[str, str]] = [("", "")]
        self._life_of: dict[tuple[str, str], int] = {("", ""): 0}

    @property
    def size_bytes(self) -> int:
        """What the table takes, however much is in it."""
        return len(self._names) * _ENTRY.itemsize

    def recall(self, ask: Ask, share: float, least: float, now: float) -> Recall:
        """Return what is known of the prompt; hot is what `share` of all conversations and `least` have.

        Changes nothing.
        """
        chain = ask.chain
        if chain is None or not len(ask.marks.depths):
            return _NOTHING
        depths = ask.marks.depths
        places = self._find(ask.marks.first)
        fresh = self._fresh(places, ask.marks.first, now).nonzero()[0]
        if not len(fresh):
            return _NOTHING
        last = int(fresh[-1])
        depth, place = int(depths[last]), int(places[last])
        continues = self._goes_on(chain, depth, place)
        floor = max(share * self._total, least * self._scale(now))
        hot = (self._branches[places[fresh]] >= floor).nonzero()[0]
        hot_depth = 0
        if len(hot):
            # Block by block to where conversations part, so that all turns of one find the same place.
            mark = int(fresh[hot[-1]])
            hot_depth = int(depths[mark])
            between, found = self._between(ask, mark, now)
            hottest = (self._branches[found] >= floor).nonzero()[0]
            if len(hottest):
                hot_depth = int(between[hottest[-1]])
        # The same for where the prompt is known to: a parting or an end may stand there.
        between, found = self._between(ask, last, now)
        for depth, place in zip(between.tolist(), found.tolist(), strict=True):
            continues = continues or self._goes_on(chain, depth, place)
        server, epoch = self._lives[self._servers[place]]
        return Recall(depth, float(self._at[place]), server, epoch, continues, hot_depth)

    def record(self, ask: Ask, recall: Recall, server: str, epoch: str, now: float) -> None:
        """Remember a prompt that `server` took; `recall` is what was known of it before."""
        chain = ask.chain
        if chain is None or not chain.names:
            return
        scale = self._advance(now)
        if not recall.continues:
            self._total += scale
        depths = np.array(self._depths_to_record(chain, recall), dtype=np.int64)
        names, _ = name_halves([chain.names[depth - 1] for depth in depths.tolist()])
        places = self._find(names)
        known = self._names[places] == names
        places = self._claim(places, names, known)
        self._at[places] = now - depths * _SECONDS_PER_BLOCK
        self._servers[places] = self._life(server, epoch)
        if not recall.continues:
            shared = places[known & (depths <= recall.depth)]
            self._branches[shared] += np.float32(scale)
        elif recall.depth < len(chain.names):
            place = places[depths.searchsorted(recall.depth)]
            if not self._children[place]:
                self._children[place] = _child(chain, recall.depth)
        self._tails[places[-1]] = _hash(chain.remainder)
        self._tail_bytes[places[-1]] = len(chain.remainder)

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

    def _depths_to_record(self, chain: Chain, recall: Recall) -> list[int]:
        count = len(chain.names)
        marks = _marks(count, chain.block_tokens)
        depths = {*marks, count}
        if recall.depth:
            depths.add(recall.depth)
            if recall.depth < count and not recall.continues:
                # Here conversations part: leave the next one a finer scale to see just where.
                following = next((mark for mark in marks if mark > recall.depth), count + 1)
                depths.update(range(recall.depth + 1, following))
        return sorted(depths)

    def _find(self, names: npt.NDArray[np.uint64]) -> Positions:
        """Return where each name stands; where it does not, some place of another."""
        sets = (names % self._set_count).astype(np.int64)
        ways = (self._sets[sets] == names[:, None]).argmax(axis=1)
        places: Positions = sets * _WAYS + ways
        return places

    def _fresh(self, places: Positions, names: npt.NDArray[np.uint64], now: float) -> npt.NDArray[np.bool_]:
        fresh: npt.NDArray[np.bool_] = (self._names[places] == names) & (self._at[places] >= now - self._keep)
        return fresh

    def _claim(
        self, places: Positions, names: npt.NDArray[np.uint64], known: npt.NDArray[np.bool_]
    ) -> Positions:
        """Give every name that is not known the place in its set that was not used for longest."""
        new = (~known).nonzero()[0]
        if len(new):
            sets = places[new] // _WAYS
            oldest = self._at.reshape(-1, _WAYS)[sets].argmin(axis=1)
            taken = sets * _WAYS + oldest
            places[new] = taken
            self._names[taken] = names[new]
            self._branches[taken] = 0.0
            self._tails[taken] = 0
            self._children[taken] = 0
        return places

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

    def _life(self, server: str, epoch: str) -> int:
        life = self._life_of.get((server, epoch))
        if life is None:
            if len(self._lives) >= np.iinfo(np.uint16).max:
                # So many restarts: what is known of who served what is given up once.
                self._servers.fill(0)
                self._lives = [("", "")]
                self._life_of = {("", ""): 0}
            life = self._life_of[server, epoch] = len(self._lives)
            self._lives.append((server, epoch))
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
