"""Slow start: a replica that has just joined gets its share of the requests bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import floor

from router.placement.roster import Roster
from router.placement.view import Column, Columns


class SlowStart:
    """Leaves replicas that warm out of views while they have their share already.

    Its cache is empty and its queue looks tempting: policies that weigh load alone would flood it, and others
    move to it more than its part. Its share grows from one request in flight to what others have on average.
    """

    def __init__(self, warming_seconds: Callable[[], float]) -> None:
        self._warming_seconds = warming_seconds
        self._warm_at: Mapping[int, float] = {}
        # The last roster that was cut, where, and what came of it: its ring's order is not worked out anew.
        self._cut: tuple[Roster, tuple[int, ...], Roster] | None = None

    def __bool__(self) -> bool:
        return bool(self._warm_at)

    def follow(self, warm_at: Mapping[int, float]) -> None:
        """Take who warms: when each will be warm, by its slot."""
        self._warm_at = warm_at

    def admitted(self, roster: Roster, columns: Columns, now: float) -> Roster:
        """Return the roster without those that have their share; the same where all warm, or none does."""
        left = [self._warm_at.get(slot, now) - now for slot in roster.slots]
        if max(left, default=0.0) <= 0:
            if all(at <= now for at in self._warm_at.values()):
                self._warm_at = {}
            return roster
        in_flight = roster.pick(columns[Column.IN_FLIGHT])
        warm = [count for count, seconds in zip(in_flight, left, strict=True) if seconds <= 0]
        if not warm:
            return roster
        mean, period = sum(warm) / len(warm), max(self._warming_seconds(), 1e-9)
        kept = tuple(
            place
            for place, (count, seconds) in enumerate(zip(in_flight, left, strict=True))
            if seconds <= 0 or count < 1 + floor(max(0.0, 1 - seconds / period) * mean)
        )
        if len(kept) == len(left):
            return roster
        if self._cut is None or self._cut[0] is not roster or self._cut[1] != kept:
            cut = replace(
                roster,
                names=tuple(roster.names[place] for place in kept),
                epochs=tuple(roster.epochs[place] for place in kept),
                slots=tuple(roster.slots[place] for place in kept),
            )
            self._cut = roster, kept, cut
        return self._cut[2]
