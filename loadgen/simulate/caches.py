"""Caches as simulated policies ask for them: as digests told, or as they are, which no router can know."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from loadgen.simulate.replica import Replica
from router.chain.chain import Chain
from router.placement.digests import DigestTable
from router.placement.marks import Marks


class AskedDigests(DigestTable):
    """What replicas told, and whether anybody has asked for it since `asked` was last made false."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = False

    def held_blocks(self, chain: Chain, marks: Marks, slots: Sequence[int]) -> Sequence[int] | None:
        """Return the deepest boundary of the chain in each digest, in blocks; -1 without a digest of it."""
        self.asked = True
        return super().held_blocks(chain, marks, slots)


class ExactCaches:
    """Residency without lag, block by block; with `queued`, as it will be once the queues are served."""

    def __init__(self, replicas: Sequence[Replica], queued: bool) -> None:
        self._replicas = replicas
        self._queued = queued

    def held_blocks(self, chain: Chain, marks: Marks, slots: Sequence[int]) -> Sequence[int]:
        """Return how many leading blocks of the chain each of `slots` holds."""
        names = chain.names
        replicas = [self._replicas[slot] for slot in slots]
        if self._queued:
            return [replica.future_blocks(names) for replica in replicas]
        return [replica.held_blocks(names) for replica in replicas]

    def told_at(self, slots: Sequence[int]) -> Sequence[float]:
        """Return that all of it is of this moment."""
        return [inf] * len(slots)
