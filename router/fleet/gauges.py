"""Gauges: the fleet as metrics tell of it, brought up to date when they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from router.fleet.members import MemberSource
from router.fleet.replica import Replica, State
from router.observe.metrics import RouterMetrics

# Longer than any scrape interval, so that the last counts of a member that left are seen.
_KEEP_COUNTERS_SECONDS = 900.0


class Gauges:
    """Keeps the metrics of members, and for a while those of members that left."""

    def __init__(self, metrics: RouterMetrics, sources: Sequence[MemberSource]) -> None:
        self._metrics = metrics
        self._sources = sources
        # Members that there is no room for.
        self.left_out = 0
        # When each kind of source was last known to be answered.
        self._answered: dict[str, float] = {}
        # When the last digest that a member had was true.
        self._digests_at: dict[str, float] = {}
        self._departed: dict[str, float] = {}

    def left(self, name: str, now: float) -> None:
        """Note that a member left, or is not called so any more."""
        self._metrics.forget_gauges(name)
        self._digests_at.pop(name, None)
        self._departed[name] = now

    def observe(self, replicas: Collection[Replica], told: Collection[MemberSource], now: float) -> None:
        """Bring the gauges up to date; `told` are the sources that told members and go on to."""
        self._metrics.left_out_members.set(self.left_out)
        self._forget_departed(replicas, now)
        states = Counter(replica.stands(now).value for replica in replicas)
        for state in State:
            self._metrics.fleet_replicas.labels(state.value).set(states[state.value])
        for source in self._sources:
            self._observe_source(source, source in told, now)
        for replica in replicas:
            if replica.name and not replica.twin:
                self._observe_replica(replica, now)

    def _observe_source(self, source: MemberSource, told: bool, now: float) -> None:
        if source.up and told:
            self._answered[source.kind] = now
        self._metrics.discovery_up.labels(source.kind).set(source.up and told)
        if source.kind in self._answered:
            self._metrics.discovery_age.labels(source.kind).set(now - self._answered[source.kind])

    def _observe_replica(self, replica: Replica, now: float) -> None:
        metrics, label, load = self._metrics, replica.name, replica.load
        view = load.view(now)
        metrics.replica_in_flight.labels(label).set(load.in_flight)
        metrics.replica_usable.labels(label).set(replica.usable)
        metrics.replica_work.labels(label).set(view.work_seconds)
        metrics.chain_mismatch.labels(label).set(replica.mismatch)
        if load.heard_at > float("-inf"):
            metrics.replica_kv_usage.labels(label).set(view.kv_usage)
            metrics.replica_running.labels(label).set(view.running)
            metrics.replica_waiting.labels(label).set(view.waiting)
        if replica.digest is not None:
            self._digests_at[label] = replica.digest_at
        if label in self._digests_at:
            # It goes on where a digest was forgotten: one that does not come again is as bad as an old one.
            metrics.digest_age.labels(label).set(now - self._digests_at[label])

    def _forget_departed(self, replicas: Collection[Replica], now: float) -> None:
        """Drop the counters of members that left a while ago, when all their requests have ended."""
        present = {replica.name for replica in replicas}
        for name, left_at in list(self._departed.items()):
            if name in present:
                del self._departed[name]
            elif now - left_at > _KEEP_COUNTERS_SECONDS:
                del self._departed[name]
                self._metrics.forget_counters(name)
