"""The board: every replica's numbers in columns, and their digests in a table, by slot."""

from __future__ import annotations

from math import inf

from router.placement.digests import DigestTable
from router.placement.view import Column, LoadView
from router.wire.report import PrefillCost


class Board:
    """Hands out slots, one a replica, and keeps what policies weigh of it.

    `columns` has a list for each Column, with a number for each slot; the lists stay the same and grow.
    """

    def __init__(self) -> None:
        self.columns: tuple[list[float], ...] = tuple([] for _ in Column)
        self.digests = DigestTable()
        self._free: list[int] = []

    def take(self) -> int:
        """Return a slot with nothing on it."""
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self.columns[0])
            for column in self.columns:
                column.append(0.0)
            self.digests.reserve(slot + 1)
        for column in self.columns:
            column[slot] = 0.0
        # Never reported: the work this router sent does not pass by itself.
        self.columns[Column.REPORTED_AT][slot] = inf
        self.price(slot, PrefillCost())
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot."""
        self.digests.clear(slot)
        self._free.append(slot)

    def price(self, slot: int, cost: PrefillCost) -> None:
        """Set what a prefill costs on a replica."""
        base, per_token, per_context = self.columns[Column.BASE_SECONDS :]
        base[slot] = cost.base_seconds
        per_token[slot] = cost.per_token_seconds
        per_context[slot] = cost.per_token_context_seconds

    def load_view(self, slot: int, now: float) -> LoadView:
        """Return one replica's load."""
        numbers = [column[slot] for column in self.columns]
        numbers[Column.REPORTED_AT] = min(numbers[Column.REPORTED_AT], now)
        return LoadView.of(numbers)
