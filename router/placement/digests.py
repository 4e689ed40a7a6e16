"""What replicas told of their caches, laid side by side so that one look-up asks them all."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from router.chain.chain import Chain
from router.chain.digest import Digest, Marks, positions

_WORD_BITS = 64
_LEAST_WIDTH = 512


class Caches(Protocol):
    """What is known of residency, for replicas by their slot (a small number each)."""

    def held_blocks(self, chain: Chain, marks: Marks, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many leading blocks of the chain each of `slots` holds; -1 where nothing is known."""

    def told_at(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return when each of `slots` told, -inf where it never did."""


class DigestTable:
    """The digests of all replicas, cut across: for each bit of the filters, one bit of each replica.

    A look-up so costs the same for one replica as for 64. A smaller filter is laid out again and again up to
    the width of the largest. Takes as many bits as all digests at the width of the largest.
    """

    def __init__(self) -> None:
        self._rows = np.zeros((_LEAST_WIDTH, 1), dtype=np.uint64)
        self._identities: list[str | None] = [None] * _WORD_BITS
        self._told_at = np.full(_WORD_BITS, -np.inf)
        # Which slots tell of a chain, by the chain's identity; made when first asked for.
        self._tellers: dict[str, npt.NDArray[np.bool_]] = {}

    def reserve(self, slot_count: int) -> None:
        """Make room for slots 0 .. slot_count - 1."""
        while slot_count > len(self._identities):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)), axis=1)
            self._identities += [None] * len(self._identities)
            self._told_at = np.append(self._told_at, np.full(len(self._told_at), -np.inf))
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
            self._told_at[slot] = -np.inf
            self._tellers.clear()

    def held_blocks(self, chain: Chain, marks: Marks, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the deepest boundary of the chain in each digest, in blocks; -1 without a digest of it."""
        tellers = self._tellers.get(chain.identity)
        if tellers is None:
            tellers = self._tellers[chain.identity] = np.array(
                [identity == chain.identity for identity in self._identities]
            )
        told = tellers[slots]
        if not np.logical_or.reduce(told):
            return np.full(len(slots), -1, dtype=np.int64)
        if not len(marks.depths):
            return np.where(told, 0, -1)
        held = self._holders(marks).view(np.uint8)
        counts = np.unpackbits(held, axis=1, bitorder="little")
        # A sum of few bytes is a byte: eight times as fast.
        size = np.uint8 if len(counts) < 256 else np.uint16
        depths = marks.reached[np.add.reduce(counts, axis=0, dtype=size)]
        return np.where(told, depths[slots], -1)

    def told_at(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return when each digest was made, -inf without one."""
        return self._told_at[slots]

    def _holders(self, marks: Marks) -> npt.NDArray[np.uint64]:
        """Return, for each mark, the bits of those that hold it and all before it: marks by words."""
        rows = self._rows.take(positions(marks.probes, len(self._rows)), axis=0)
        # A held block's parent is held too: what follows a gap is a false positive.
        found = np.bitwise_and.reduce(rows, axis=0)
        return np.bitwise_and.accumulate(found, axis=0)
