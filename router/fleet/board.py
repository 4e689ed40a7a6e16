"""The board: every replica's numbers in one table, and their digests in another, by slot."""

from __future__ import annotations

import numpy as np

from router.placement.digests import DigestTable
from router.placement.view import Column, Floats, LoadView
from router.wire.report import PrefillCost

_FIRST_CAPACITY = 16


class Board:
    """Hands out slots, one a replica, and keeps what policies weigh of it.

    `table` has a row for each Column and grows by whole new arrays: hold the board, never its table.
    """

    def __init__(self) -> None:
        self.table: Floats = np.zeros((len(Column), _FIRST_CAPACITY))
        self.digests = DigestTable()
        self._free = list(range(_FIRST_CAPACITY - 1, -1, -1))

    def take(self) -> int:
        """Return a slot with nothing on it."""
        if not self._free:
            capacity = self.table.shape[1]
            self.table = np.concatenate((self.table, np.zeros_like(self.table)), axis=1)
            self._free = list(range(2 * capacity - 1, capacity - 1, -1))
            self.digests.reserve(2 * capacity)
        slot = self._free.pop()
        self.table[:, slot] = 0.0
        # Never reported: the work this router sent does not pass by itself.
        self.table[Column.REPORTED_AT, slot] = np.inf
        self.price(slot, PrefillCost())
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot."""
        self.digests.clear(slot)
        self._free.append(slot)

    def price(self, slot: int, cost: PrefillCost) -> None:
        """Set what a prefill costs on a replica."""
        self.table[Column.BASE_SECONDS :, slot] = (
            cost.base_seconds,
            cost.per_token_seconds,
            cost.per_token_context_seconds,
        )

    def load_view(self, slot: int, now: float) -> LoadView:
        """Return one replica's load."""
        column = self.table[:, slot].tolist()
        column[Column.REPORTED_AT] = min(column[Column.REPORTED_AT], now)
        return LoadView.of_column(column)
