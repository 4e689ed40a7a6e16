"""A router's soft memory of prompts: how deep a prompt is known, which prefixes are hot, who served it last.

All of it may be lost at any moment: it sharpens decisions and is never needed for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp

from router.chain.chain import Chain
from router.chain.digest import DENSE_TOKENS, boundaries

# Depths at which a prompt is remembered within its first thousand tokens; beyond, as in a digest. Coarser,
# since most of a chat's names say nothing: where it ends, and where chats part, is kept besides.
_FIRST_MARKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

# Weights grow by e^(t/tau) instead of all shrinking; past this exponent they are scaled back.
_MAX_EXPONENT = 40.0


@dataclass(slots=True)
class _Entry:
    """What is known of one block's name.

    `branches` is the decayed number of different conversations beyond the first that went through it.
    `tail` is what stood behind it, unnamed, in the last prompt that ended on it; None if none did.
    """

    at: float
    server: str
    epoch: str
    branches: float = 0.0
    tail: bytes | None = None


@dataclass(frozen=True, slots=True)
class Recall:
    """What is remembered of a prompt: known to `depth` blocks, sent last, at `at`, to the replica `server`.

    `epoch` is the life of that replica's cache at the time. `continues` is true where the prompt goes on from
    one seen before, not merely shares a beginning with one.
    """

    depth: int = 0
    at: float = float("-inf")
    server: str = ""
    epoch: str = ""
    continues: bool = False


class Memory:
    """Names at a few depths of each prompt, and block by block where conversations part; oldest go first.

    Popularity is counted in conversations, not requests: a prompt that continues one counts for nothing, so
    that no conversation makes its own prefix hot, and one whose prefix nobody shares never enters a count.
    """

    def __init__(self, entries: int, keep_seconds: float, decay_seconds: float) -> None:
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._limit = entries
        self._keep = keep_seconds
        self._decay = decay_seconds
        self._start = 0.0
        self._total = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def recall(self, chain: Chain, now: float) -> Recall:
        """Return what is known of the prompt. Changes nothing."""
        names = chain.names
        depth = 0
        depths = _marks(len(names), chain.block_tokens)
        low, high = 0, len(depths)
        while low < high:
            middle = (low + high) // 2
            if self._fresh(names[depths[middle] - 1], now):
                low = middle + 1
            else:
                high = middle
        if low:
            depth = depths[low - 1]
        end = depths[low] - 1 if low < len(depths) else len(names)
        continues = depth > 0 and self._ends(chain, depth)
        # Between two boundaries: block by block, over those that a parting or an end has left there.
        for deeper in range(depth + 1, end + 1):
            if self._fresh(names[deeper - 1], now):
                depth = deeper
                continues = continues or self._ends(chain, deeper)
        if not depth:
            return Recall()
        entry = self._entries[names[depth - 1]]
        return Recall(depth, entry.at, entry.server, entry.epoch, continues)

    def hot_depth(self, chain: Chain, recall: Recall, share: float, least: float, now: float) -> int:
        """Return how many leading blocks are common to `share` of all conversations and `least` at least."""
        floor = max(share * self._total, least * self._scale(now))
        # Popularity falls along a chain. By boundaries first, then block by block to where conversations
        # part, so that a conversation's later turns find the same place as its first.
        hot = self._last_hot(chain, _marks(len(chain.names), chain.block_tokens), recall.depth, floor)
        return self._last_hot(chain, self._cell(chain, hot), recall.depth, floor) or hot

    def record(self, chain: Chain, recall: Recall, server: str, epoch: str, now: float) -> None:
        """Remember a prompt that `server` took; `recall` is what was known of it before."""
        names = chain.names
        if not names:
            return
        scale = self._advance(now)
        if not recall.continues:
            self._total += scale
        depths = set(_marks(len(names), chain.block_tokens))
        if 0 < recall.depth < len(names) and not recall.continues:
            # Here conversations part: leave the next one a finer scale to see just where.
            depths.update(self._cell(chain, recall.depth))
        depths.update(self._known_depths(chain, recall.depth))
        depths.add(len(names))
        # Deepest first, so that a beginning is always fresher than what follows it, and outlives it.
        for depth in sorted(depths, reverse=True):
            name = names[depth - 1]
            entry = self._entries.get(name)
            if entry is None:
                entry = self._entries[name] = _Entry(now, server, epoch)
            else:
                entry.at = now
                entry.server, entry.epoch = server, epoch
                self._entries.move_to_end(name)
                if depth <= recall.depth and not recall.continues:
                    entry.branches += scale
        self._entries[names[-1]].tail = chain.remainder
        self._forget(now)

    def _last_hot(self, chain: Chain, depths: Iterable[int], known: int, floor: float) -> int:
        """Return the last of the leading `depths` whose branches reach `floor`, 0 if none does."""
        hot = 0
        for depth in depths:
            entry = self._entries.get(chain.names[depth - 1]) if depth <= known else None
            if entry is None or entry.branches < floor:
                break
            hot = depth
        return hot

    def _ends(self, chain: Chain, depth: int) -> bool:
        """Say whether an earlier prompt ended `depth` blocks in, and this one goes on just as it did."""
        tail = self._entries[chain.names[depth - 1]].tail
        return tail is not None and chain.continues(depth, tail)

    def _known_depths(self, chain: Chain, known: int) -> Iterator[int]:
        """Yield, ascending, the depths up to `known` where names of this chain may be remembered."""
        last = 0
        for depth in _marks(len(chain.names), chain.block_tokens):
            if depth > known:
                break
            last = depth
            yield depth
        yield from range(last + 1, known + 1)

    def _cell(self, chain: Chain, depth: int) -> range:
        """Return the depths between `depth` and the next boundary."""
        count = len(chain.names)
        marks = _marks(count, chain.block_tokens)
        following = next((edge for edge in marks if edge > depth), count + 1)
        return range(depth + 1, following)

    def _fresh(self, name: bytes, now: float) -> bool:
        entry = self._entries.get(name)
        return entry is not None and now - entry.at <= self._keep

    def _scale(self, now: float) -> float:
        return exp(min((now - self._start) / self._decay, _MAX_EXPONENT))

    def _advance(self, now: float) -> float:
        """Return the weight of one conversation at `now`; scale everything back before it overflows."""
        if now - self._start > self._decay * _MAX_EXPONENT / 2:
            shrink = 1 / self._scale(now)
            self._total *= shrink
            for entry in self._entries.values():
                entry.branches *= shrink
            self._start = now
        return self._scale(now)

    def _forget(self, now: float) -> None:
        while self._entries:
            entry = next(iter(self._entries.values()))
            if len(self._entries) <= self._limit and now - entry.at <= self._keep:
                break
            self._entries.popitem(last=False)


@lru_cache(maxsize=1024)
def _marks(block_count: int, block_tokens: int) -> Sequence[int]:
    """Return the depths, ascending, at which a prompt of `block_count` blocks is remembered."""
    dense = DENSE_TOKENS // block_tokens
    first = [depth for depth in _FIRST_MARKS if depth <= min(block_count, dense)]
    return (*first, *(depth for depth in boundaries(block_count, block_tokens) if depth > dense))
