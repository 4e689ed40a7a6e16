"""What replicas told of their caches, laid side by side so that one look-up asks them all."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Protocol

import numpy as np

from router.chain.chain import Chain
from router.chain.digest import Digest, positions
from router.placement.marks import Marks

_WORD_BITS = 64
_LEAST_WIDTH = 512


class Caches(Protocol):
    """What is known of residency, for replicas by their slot (a small number each)."""

    def held_blocks(self, chain: Chain, marks: Marks, slots: Sequence[int]) -> Sequence[int] | None:
        """Return how many leading blocks of the chain each of `slots` holds; -1 where that is not known.

        None where nothing is known of any.
        """

    def told_at(self, slots: Sequence[int]) -> Sequence[float]:
        """Return when each of `slots` told, -inf where it never did."""


class DigestTable:
    """The digests of all replicas, cut across: for each bit of the filters, one bit of each replica.

    A look-up so costs the same for one replica as for 64. A smaller filter is laid out again and again up to
    the width of the largest. Takes as many bits as all digests at the width of the largest.
    """

    def __init__(self) -> None:
        self._rows = np.zeros((_LEAST_WIDTH, 1), dtype=np.uint64)
        self._identities: list[str | None] = [None] * _WORD_BITS
        self._told_at = [-inf] * _WORD_BITS
        # Which slots tell of a chain, by the chain's identity; made when first asked for.
        self._tellers: dict[str, frozenset[int]] = {}

    def reserve(self, slot_count: int) -> None:
        """Make room for slots 0 .. slot_count - 1."""
        while slot_count > len(self._identities):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)), axis=1)
            self._identities += [None] * len(self._identities)
            self._told_at += [-inf] * len(self._told_at)
            self._tellers.clear()

    def put(self, slot: int, digest: Digest, told_at: float) -> None:
        """Replace what `slot` told."""
        bits = np.unpackbits(np.frombuffer(digest.bits, dtype=np.uint8), bitorder="little")
        if len(bits) > len(self._rows):
            self._rows = np.tile(self._rows, (len(bits) // len(self._rows), 1))
        column = np.tile(bits, len(self._rows) // len(bits)).astype(np.uint64)
        word, place = divmod(slot, _WORD_BITS)
        mask = np.uint64(1 << place)
        self._rows[:, word] = (self._rows[:, word] & ~mask) | (column << np.uint64(place))
        self._told_at[slot] = told_at
        if self._identities[slot] != digest.identity:
            self._identities[slot] = digest.identity
            self._tellers.clear()

    def still_true(self, slot: int, told_at: float) -> None:
        """Note that what `slot` told was told again."""
        if self._identities[slot] is not None:
            self._told_at[slot] = told_at

    def clear(self, slot: int) -> None:
        """Forget what `slot` told."""
        if self._identities[slot] is not None:
            self._identities[slot] = None
            self._told_at[slot] = -inf
            self._tellers.clear()

    def held_blocks(self, chain: Chain, marks: Marks, slots: Sequence[int]) -> Sequence[int] | None:
        """Return the deepest boundary of the chain in each digest, in blocks; -1 without a digest of it.

        None where nobody tells of such chains.
        """
        tellers = self._tellers.get(chain.identity)
        if tellers is None:
            tellers = self._tellers[chain.identity] = frozenset(
                slot for slot, identity in enumerate(self._identities) if identity == chain.identity
            )
        if not tellers:
            return None
        depths = (0, *marks.depths)
        counts = self._counts(marks)
        if tellers.issuperset(slots):
            return [depths[counts[slot]] for slot in slots]
        return [depths[counts[slot]] if slot in tellers else -1 for slot in slots]

    def told_at(self, slots: Sequence[int]) -> Sequence[float]:
        """Return when each digest was made, -inf without one."""
        return list(map(self._told_at.__getitem__, slots))

    def _counts(self, marks: Marks) -> Sequence[int]:
        """Return how many of the marks, from the first on, each slot holds."""
        if not marks.depths:
            return [0] * len(self._identities)
        rows = self._rows.take(positions(marks.probes(), len(self._rows)), axis=0)
        # A held block's parent is held too: what follows a gap is a false positive.
        found = np.bitwise_and.accumulate(np.bitwise_and.reduce(rows, axis=0), axis=0)
        held = np.unpackbits(found.view(np.uint8), axis=1, bitorder="little")
        # A sum of few bytes is a byte: eight times as fast.
        size = np.uint8 if len(held) < 256 else np.uint16
        counts: list[int] = np.add.reduce(held, axis=0, dtype=size).tolist()
        return counts
