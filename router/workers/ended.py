"""What workers counted that are no more: kept, so that no sum goes back, but not for ever."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from router.observe.merge import Family, lasting, replicas, without

# As long as a worker keeps the counts of a replica that left.
_KEEP_SECONDS = 900.0


class Ended:
    """The counters and histograms of ended workers, added up."""

    def __init__(self) -> None:
        self.families: list[Family] = []
        self._seen_at: dict[str, float] = {}

    def add(self, told: Iterable[Family]) -> None:
        """Add what a worker had counted when it was last heard."""
        self.families = lasting(told, self.families)

    def forget_departed(self, living: Sequence[Iterable[Family]], now: float) -> None:
        """Drop the counts of replicas that no living worker has told of for a while."""
        present = {name for told in living for name in replicas(told)}
        held = replicas(self.families)
        self._seen_at = {
            name: now if name in present else self._seen_at.get(name, now) for name in held if name
        }
        gone = {name for name, seen_at in self._seen_at.items() if now - seen_at > _KEEP_SECONDS}
        if gone:
            self.families = without(self.families, gone.__contains__)
