"""Caches as simulated policies ask for them: as digests told, or as they are, which no router can know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from loadgen.simulate.replica import Replica
from router.chain.chain import Chain
from router.chain.digest import Marks
from router.placement.digests import DigestTable


class AskedDigests(DigestTable):
    """What replicas told, and whether anybody has asked for it since `asked` was last made false."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = False

    def held_blocks(self, chain: Chain, marks: Marks, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the deepest boundary of the chain in each digest, in blocks; -1 without a digest of it."""
        self.asked = True
        return super().held_blocks(chain, marks, slots)


class ExactCaches:
    """Residency without lag, block by block; with `queued`, as it will be once the queues are served."""

    def __init__(self, replicas: Sequence[Replica], queued: bool) -> None:
        self._replicas = replicas
        self._queued = queued

    def held_blocks(self, chain: Chain, marks: Marks, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many leading blocks of the chain each of `slots` holds."""
        names = chain.names
        replicas = [self._replicas[slot] for slot in slots.tolist()]
        if self._queued:
            return np.array([replica.future_blocks(names) for replica in replicas], dtype=np.int64)
        return np.array([replica.held_blocks(names) for replica in replicas], dtype=np.int64)

    def told_at(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return that all of it is of this moment."""
        return np.full(len(slots), np.inf)
