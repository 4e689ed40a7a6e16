"""The roster: who may serve an ask, and what of that need not be worked out for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from xxhash import xxh3_64_intdigest

from router.placement.ring import Ring


@dataclass(frozen=True, eq=False)
class Roster:
    """Who may serve an ask: made when that changes, and shared by the views until then.

    `ring` is over all members, and `members` counts those that serve the model, dead ones included: what is
    a fair share must not change when one of them dies. `slots` are where caches know the replicas.
    """

    names: tuple[str, ...]
    epochs: tuple[str, ...]
    slots: tuple[int, ...]
    ring: Ring
    members: int

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each name stands in `names`."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def hashes(self) -> Sequence[int]:
        """A hash of each name."""
        return [xxh3_64_intdigest(name.encode()) for name in self.names]

    @cached_property
    def pick(self) -> Callable[[Sequence[float]], Sequence[float]]:
        """Take from a column by slots what is of these replicas."""
        slots = self.slots
        first, end = (slots[0], slots[-1] + 1) if slots else (0, 0)
        if slots == tuple(range(first, end)):
            # As they are handed out, and stay while nobody leaves. One slot always is such a run.
            return itemgetter(slice(first, end))
        return itemgetter(*slots)
