"""Metrics that only an endpoint picker has, beside those it shares with routers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class PickerMetrics:
    """Every metric by its name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.spoofed = Counter(
            "kvring_picker_spoofed_headers_total",
            "Headers that steer requests, sent by clients themselves and taken out.",
            registry=registry,
        )
        self.chunks = Counter(
            "kvring_picker_answer_chunks_total",
            "Pieces of answers that gateways sent here for nothing: their filter should not.",
            registry=registry,
        )
        self.unaddressed = Gauge(
            "kvring_picker_unaddressed_replicas",
            "Replicas whose name has no address yet: they are not picked.",
            registry=registry,
        )
