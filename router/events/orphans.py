"""Blocks whose parent is not known: they wait, bounded, until it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True, slots=True)
class Orphan:
    """One engine block: its parent's hash, its packed tokens, the places that hold it (a bit each).

    `plain` is false where it depends on more than can be named.
    """

    parent: int
    tokens: bytes
    places: int
    plain: bool


class Orphans:
    """Holds at most `limit` blocks by their hashes; beyond, those that came first leave."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._blocks: dict[int, Orphan] = {}
        self._children: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def add(
        self, parent: int, hashes: Sequence[int], tokens: bytes, block_bytes: int, place: int, plain: int
    ) -> None:
        """Add blocks that follow one another behind `parent`; those from `plain` on cannot be named."""
        for position, hash_ in enumerate(hashes):
            known = self._blocks.get(hash_)
            places = place | known.places if known else place
            if known is None:
                self._children.setdefault(parent, []).append(hash_)
            else:
                parent = known.parent
            part = tokens[position * block_bytes : (position + 1) * block_bytes]
            self._blocks[hash_] = Orphan(parent, part, places, position < plain)
            parent = hash_
        if len(self._blocks) > self._limit:
            # A part at once, since finding the oldest walks over those that left before.
            excess = len(self._blocks) - self._limit + self._limit // 64
            for hash_ in list(islice(self._blocks, excess)):
                self._forget(hash_)

    def pop_children(self, parent: int) -> list[tuple[int, Orphan]]:
        """Take out the blocks that follow `parent`, by their hashes."""
        return [(hash_, self._blocks.pop(hash_)) for hash_ in self._children.pop(parent, ())]

    def remove(self, hash_: int, places: int) -> None:
        """Note that a block, if it waits here, left `places`."""
        orphan = self._blocks.get(hash_)
        if orphan is None:
            return
        if left := orphan.places & ~places:
            self._blocks[hash_] = Orphan(orphan.parent, orphan.tokens, left, orphan.plain)
        else:
            self._forget(hash_)

    def clear(self) -> None:
        """Forget all."""
        self._blocks.clear()
        self._children.clear()

    def _forget(self, hash_: int) -> None:
        orphan = self._blocks.pop(hash_)
        siblings = self._children[orphan.parent]
        siblings.remove(hash_)
        if not siblings:
            del self._children[orphan.parent]
