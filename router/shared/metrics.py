"""What is shared through Redis, and whether it is, read when scraped."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.shared.connection import Connection
from router.shared.loads import SharedLoad


class SharedMetrics(Collector):
    """Reads the connection, and the shared load where it is."""

    def __init__(self, connection: Connection, load: SharedLoad | None) -> None:
        self._connection = connection
        self._load = load

    def describe(self) -> Iterable[Metric]:
        """Return the metrics, so that they can be read by name."""
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as of now."""
        yield GaugeMetricFamily(
            "kvring_redis_up", "1 where Redis answered the last command.", float(self._connection.up)
        )
        yield GaugeMetricFamily(
            "kvring_redis_age_seconds",
            "Since Redis last answered, or since the start where it never did.",
            self._connection.age_seconds,
        )
        yield GaugeMetricFamily(
            "kvring_shared_routers",
            "Other routers whose load is counted in.",
            self._load.routers if self._load else 0,
        )
