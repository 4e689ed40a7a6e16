"""What following comes to is told by replica."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from router.events.counts import EventCounts, EventMetrics


def test_counts_are_told_by_replica_as_of_now() -> None:
    told: dict[str, EventCounts] = {}
    registry = CollectorRegistry()
    registry.register(EventMetrics(lambda: told))
    assert b'{replica="' not in generate_latest(registry)
    told["r0"] = EventCounts(
        connected=True,
        batches=7,
        gaps=2,
        dropped=1,
        unknown_events=3,
        blocks=100,
        orphans=4,
        evicted=5,
        skipped={"pairs of tokens": 6},
    )
    text = generate_latest(registry).decode()
    for line in (
        'kvring_event_feed_connected{replica="r0"} 1.0',
        'kvring_event_batches_total{replica="r0"} 7.0',
        'kvring_event_gaps_total{replica="r0"} 2.0',
        'kvring_event_dropped_indexes_total{replica="r0"} 1.0',
        'kvring_event_unknown_total{replica="r0"} 3.0',
        'kvring_index_blocks{replica="r0"} 100.0',
        'kvring_event_orphan_blocks{replica="r0"} 4.0',
        'kvring_index_evicted_blocks_total{replica="r0"} 5.0',
        'kvring_event_skipped_blocks_total{reason="pairs of tokens",replica="r0"} 6.0',
    ):
        assert line in text
