"""The roster: who may serve an ask, and what of that need not be worked out for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from operator import itemgetter

from xxhash import xxh3_64_intdigest

from router.placement.ring import Ring

# Points of the ring whose homes are kept; a hundred replicas have sixteen thousand.
_MOST_HOMES = 16_384


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
    _homes: dict[int, tuple[int, int]] = field(default_factory=dict, init=False, repr=False)

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
        if len(slots) < 2:
            # Of one slot alone, itemgetter returns what stands there.
            return lambda column: tuple([column[slot] for slot in slots])
        return itemgetter(*slots)

    def homes(self, key: bytes) -> tuple[int, int]:
        """Return the first two places of these replicas on a walk of the ring, -1 where there is none."""
        point = self.ring.point(key)
        homes = self._homes.get(point)
        if homes is None:
            places = self.places
            walked = (places[name] for name in self.ring.walk_from(point) if name in places)
            first, second = (*islice(walked, 2), -1, -1)[:2]
            if len(self._homes) >= _MOST_HOMES:
                self._homes.clear()
            homes = self._homes[point] = first, second
        return homes
