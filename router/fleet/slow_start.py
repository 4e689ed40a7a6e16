"""Slow start: a replica that has just joined gets its share of the requests bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from router.placement.view import Column, Floats, Roster


class SlowStart:
    """Leaves replicas that warm out of views while they have their share already.

    Its cache is empty and its queue looks tempting: policies that weigh load alone would flood it, and others
    move to it more than its part. Its share grows from one request in flight to what others have on average.
    """

    def __init__(self, warming_seconds: Callable[[], float]) -> None:
        self._warming_seconds = warming_seconds
        self._warm_at: Mapping[int, float] = {}
        # The last roster that was cut, where, and what came of it: its ring's order is not worked out anew.
        self._cut: tuple[Roster, bytes, Roster] | None = None

    def __bool__(self) -> bool:
        return bool(self._warm_at)

    def follow(self, warm_at: Mapping[int, float]) -> None:
        """Take who warms: when each will be warm, by its slot."""
        self._warm_at = warm_at

    def admitted(self, roster: Roster, table: Floats, now: float) -> Roster:
        """Return the roster without those that have their share; the same where all warm, or none does."""
        slots = roster.slots
        left = np.array([self._warm_at.get(slot, now) - now for slot in slots.tolist()])
        warm = left <= 0
        if warm.all():
            if all(at <= now for at in self._warm_at.values()):
                self._warm_at = {}
            return roster
        if not warm.any():
            return roster
        in_flight = table[Column.IN_FLIGHT].take(slots)
        progress = np.clip(1.0 - left / max(self._warming_seconds(), 1e-9), 0.0, 1.0)
        share = 1.0 + np.floor(progress * in_flight[warm].mean())
        kept = np.flatnonzero(warm | (in_flight < share))
        if len(kept) == len(slots):
            return roster
        where = kept.tobytes()
        if self._cut is None or self._cut[0] is not roster or self._cut[1] != where:
            cut = replace(
                roster,
                names=tuple(roster.names[place] for place in kept),
                epochs=tuple(roster.epochs[place] for place in kept),
                slots=slots[kept],
            )
            self._cut = roster, where, cut
        return self._cut[2]
