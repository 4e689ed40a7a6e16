"""What following KV events comes to, read when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class EventCounts:
    """The counts of one replica. `skipped` are blocks that cannot be named, by why."""

    connected: bool
    batches: int
    gaps: int
    dropped: int
    unknown_events: int
    blocks: int
    orphans: int
    evicted: int
    skipped: Mapping[str, int]


_GAUGES = (
    ("kvring_event_feed_connected", "1 where all publishers of a replica are heard.", "connected"),
    ("kvring_event_orphan_blocks", "Blocks that wait for a parent not told of yet.", "orphans"),
    ("kvring_index_blocks", "KV blocks of a replica known from its events.", "blocks"),
)
_COUNTERS = (
    ("kvring_event_batches", "Messages with KV events taken.", "batches"),
    ("kvring_event_gaps", "Times that messages with KV events were missing.", "gaps"),
    ("kvring_event_dropped_indexes", "Times that what was known of a cache had to be dropped.", "dropped"),
    ("kvring_event_unknown", "KV events of unknown kinds, left out.", "unknown_events"),
    ("kvring_index_evicted_blocks", "Blocks forgotten since the index was full.", "evicted"),
)


class EventMetrics(Collector):
    """Made anew from `counts`, by replica, at each scrape."""

    def __init__(self, counts: Callable[[], Mapping[str, EventCounts]]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as of now."""
        told = self._counts()
        for name, text, field in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=("replica",))
            for replica, counts in told.items():
                gauge.add_metric((replica,), float(getattr(counts, field)))
            yield gauge
        for name, text, field in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=("replica",))
            for replica, counts in told.items():
                counter.add_metric((replica,), float(getattr(counts, field)))
            yield counter
        skipped = CounterMetricFamily(
            "kvring_event_skipped_blocks",
            "Stored blocks that cannot be named, by why.",
            labels=("replica", "reason"),
        )
        for replica, counts in told.items():
            for reason, blocks in counts.skipped.items():
                skipped.add_metric((replica, reason), float(blocks))
        yield skipped
