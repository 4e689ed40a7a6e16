"""Rosters: who may serve which model, worked out once and kept until something changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from router.fleet.replica import Replica
from router.fleet.slow_start import SlowStart
from router.placement.ring import Ring
from router.placement.roster import Roster
from router.placement.view import Columns

# Sets of members that rings are kept for: of each model, and of the time before a change.
_MOST_RINGS = 32


class Rosters:
    """Makes rosters of `members`; `routable` are those that a model's requests are sent to."""

    def __init__(
        self,
        members: Callable[[], Collection[Replica]],
        routable: Callable[[str], Sequence[Replica]],
        warming_seconds: Callable[[], float],
    ) -> None:
        self._members = members
        self._routable = routable
        self._slow_start = SlowStart(warming_seconds)
        self._rings: dict[tuple[str, ...], Ring] = {}
        self._serving: dict[str, Roster] = {}

    def changed(self, now: float) -> None:
        """Forget who serves what: names, standings or members changed."""
        self._serving.clear()
        self._slow_start.follow(
            {r.slot: r.warm_at or 0.0 for r in self._members() if r.usable and r.warms_until(now)}
        )

    def of(self, model: str, columns: Columns, now: float, everybody: bool = False) -> Roster:
        """Return who may serve `model`; those that warm only as far as their share goes, or `everybody`."""
        roster = self._serving.get(model) or self._who_serves(model)
        return (
            self._slow_start.admitted(roster, columns, now) if self._slow_start and not everybody else roster
        )

    def _who_serves(self, model: str) -> Roster:
        serving = self._routable(model)
        # Dead ones too: what is home must not change for those that live on.
        members = tuple(
            sorted(r.name for r in self._members() if r.name and model in r.models and not r.twin)
        )
        roster = Roster(
            names=tuple(replica.name for replica in serving),
            epochs=tuple(replica.epoch for replica in serving),
            slots=tuple(replica.slot for replica in serving),
            ring=self._ring_of(members),
            members=len(members),
        )
        if serving:
            # Only models that exist: names that clients make up must not fill memory.
            self._serving[model] = roster
        return roster

    def _ring_of(self, names: tuple[str, ...]) -> Ring:
        """Return the ring over these members; models with the same ones share it."""
        ring = self._rings.pop(names, None) or Ring(names)
        self._rings[names] = ring
        while len(self._rings) > _MOST_RINGS:
            del self._rings[next(iter(self._rings))]
        return ring
