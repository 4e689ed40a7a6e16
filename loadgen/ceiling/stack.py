"""Stack distances of prompts: in one pass, what LRU caches of many sizes would hold of each.

A cache of C blocks that evicts least recently used blocks, a chain's tail before its head, holds at any time
the first C blocks of one stack (Mattson's inclusion property): each request puts its blocks on top, its head
topmost. So the distance of a block from the top tells which caches have it. Blocks that were always used
together lie together, and are kept as one run; Fenwick sums over the runs give their distances.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

_MASK = (1 << 64) - 1
_LEAST_SLOTS = 1024


class _Run:
    """Blocks that were always used together. `uses` counts how often."""

    __slots__ = ("children", "ids", "parent", "slot", "uses")

    def __init__(self, ids: array[int], parent: _Run | None) -> None:
        self.ids = ids
        self.parent = parent
        self.children: dict[int, _Run] = {}
        self.slot = -1
        self.uses = 0


@dataclass(frozen=True, slots=True)
class Reuse:
    """A run of blocks found again: `blocks` of them, `distance` others above, after `uses` former uses."""

    blocks: int
    distance: int
    uses: int


class BlockStack:
    """The stack. Holds at most `max_blocks` blocks: those used least recently are forgotten beyond it."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._root = _Run(array("Q"), None)
        self._order: OrderedDict[int, _Run] = OrderedDict()
        self._sums = _Sums(_LEAST_SLOTS)
        self._next_slot = 0
        self.blocks = 0
        self.forgotten = 0
        self.distinct = 0

    def use(self, ids: Sequence[int]) -> list[Reuse]:
        """Put a prompt's full blocks on top; return what of its start is in the stack, from its head on.

        Ids are chained: equal ones mean equal prefixes up to there.
        """
        wanted = array("Q", [id & _MASK for id in ids])
        path, found, cut = self._match(wanted)
        if self._next_slot + len(path) + 1 > self._sums.size:
            self._renumber(len(path) + 1)
        reuses = [Reuse(len(run.ids), self._sums.above(run.slot), run.uses) for run in path]
        if cut:
            reuses[-1] = replace(reuses[-1], blocks=cut)
            path[-1] = self._split(path[-1], cut)
        if found < len(wanted):
            parent = path[-1] if path else self._root
            run = _Run(wanted[found:], parent)
            parent.children[wanted[found]] = run
            self.blocks += len(run.ids)
            self.distinct += len(run.ids)
            path.append(run)
        for run in reversed(path):
            self._put_on_top(run)
            run.uses += 1
        while self.blocks > self._max_blocks and len(self._order) > 1:
            self._forget_last()
        return reuses

    def _match(self, wanted: array[int]) -> tuple[list[_Run], int, int]:
        """Return the runs that a prompt finds, its blocks in them, and how many of the last, 0 for all."""
        run, found, cut = self._root, 0, 0
        path: list[_Run] = []
        while found < len(wanted) and not cut:
            child = run.children.get(wanted[found])
            if child is None:
                break
            run = child
            common = _common(run.ids, wanted, found)
            path.append(run)
            found += common
            cut = common if common < len(run.ids) else 0
        return path, found, cut

    def _split(self, run: _Run, at: int) -> _Run:
        """Cut a run; return its head, which has no place yet. The tail keeps the run's."""
        head = _Run(run.ids[:at], run.parent)
        head.uses = run.uses
        assert run.parent is not None
        run.parent.children[head.ids[0]] = head
        run.ids = run.ids[at:]
        run.parent = head
        head.children[run.ids[0]] = run
        self._sums.add(run.slot, -at)
        return head

    def _put_on_top(self, run: _Run) -> None:
        if run.slot >= 0:
            self._sums.add(run.slot, -len(run.ids))
            del self._order[run.slot]
        run.slot = self._next_slot
        self._next_slot += 1
        self._order[run.slot] = run
        self._sums.add(run.slot, len(run.ids))

    def _renumber(self, room: int) -> None:
        """Close the gaps between places, and make room for new ones."""
        runs = list(self._order.values())
        self._sums = _Sums(max(_LEAST_SLOTS, 2 * (len(runs) + room)))
        self._order = OrderedDict(enumerate(runs))
        for slot, run in self._order.items():
            run.slot = slot
            self._sums.add(slot, len(run.ids))
        self._next_slot = len(runs)

    def _forget_last(self) -> None:
        slot, run = self._order.popitem(last=False)
        self._sums.add(slot, -len(run.ids))
        assert run.parent is not None
        del run.parent.children[run.ids[0]]
        self.blocks -= len(run.ids)
        self.forgotten += len(run.ids)


def _common(ids: array[int], wanted: array[int], start: int) -> int:
    """Return how many ids agree, by halving: where one agrees, all before it do."""
    low, high = 1, min(len(ids), len(wanted) - start)
    while low < high:
        middle = (low + high + 1) // 2
        if ids[middle - 1] == wanted[start + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


class _Sums:
    """A Fenwick tree: sums over slots, each step O(log slots)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._tree = [0] * (size + 1)
        self._total = 0

    def add(self, slot: int, count: int) -> None:
        self._total += count
        tree, size = self._tree, self.size
        slot += 1
        while slot <= size:
            tree[slot] += count
            slot += slot & -slot

    def above(self, slot: int) -> int:
        """Return the sum over all later slots."""
        tree, below = self._tree, 0
        slot += 1
        while slot:
            below += tree[slot]
            slot &= slot - 1
        return self._total - below
