"""What the layouts of live traffic cost, read when scraped."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.observe.layout.cause import Cause
from router.observe.layout.watch import LayoutWatch


class LayoutMetrics(Collector):
    """Made anew from the watch's report at each scrape. Gauges, since estimates are no exact counts."""

    def __init__(self, watch: LayoutWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as of now."""
        report = self._watch.report()
        lost = dict.fromkeys(Cause, 0.0)
        for row in report.rows:
            lost[row.cause] += row.lost_tokens
        by_cause = GaugeMetricFamily(
            "kvring_layout_lost_tokens",
            "Of these, what another layout of the prompts would have let a cache hold, by why it does not.",
            labels=("cause",),
        )
        for cause, tokens in lost.items():
            by_cause.add_metric((cause.value,), tokens)
        return (
            GaugeMetricFamily(
                "kvring_layout_requests",
                "Requests since the start, as estimated from those whose layout was looked at.",
                value=report.requests,
            ),
            GaugeMetricFamily(
                "kvring_layout_prompt_tokens", "Their prompt tokens.", value=report.prompt_tokens
            ),
            by_cause,
            CounterMetricFamily(
                "kvring_layout_skipped",
                "Sampled requests whose layout was not looked at: too large, without text, or one too many.",
                value=self._watch.skipped,
            ),
            GaugeMetricFamily(
                "kvring_layout_memory_bytes",
                "About what is held to compare layouts with.",
                value=self._watch.held_bytes,
            ),
        )
