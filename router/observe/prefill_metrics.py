"""What prefills are taken to cost on each replica, and how well that predicts, read when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.wire.report import PrefillCost


@dataclass(frozen=True, slots=True)
class PrefillReading:
    """One replica's S in use, and its errors relative to what was observed, None before anything was."""

    replica: str
    cost: PrefillCost
    observations: int
    absolute_error: float | None
    bias: float | None


class PrefillMetrics(Collector):
    """Made anew from `read` at each scrape, so that nothing is left of replicas that left."""

    def __init__(self, read: Callable[[], Iterable[PrefillReading]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as of now."""
        coefficients = GaugeMetricFamily(
            "kvring_prefill_coefficient_seconds",
            "Coefficients of S as used: of any prefill, of a token, of a token and a token of its context.",
            labels=("replica", "part"),
        )
        absolute = GaugeMetricFamily(
            "kvring_prefill_prediction_error_ratio",
            "Mean of |predicted - observed| / observed over the last fifty prefills or so.",
            labels=("replica",),
        )
        bias = GaugeMetricFamily(
            "kvring_prefill_prediction_bias_ratio",
            "The same with its sign: above 0 where a replica is faster than predicted.",
            labels=("replica",),
        )
        observations = CounterMetricFamily(
            "kvring_prefill_observations",
            "Prefills that predictions were compared with.",
            labels=("replica",),
        )
        for reading in self._read():
            for name in PrefillCost.__slots__:
                part = name.removesuffix("_seconds")
                coefficients.add_metric((reading.replica, part), getattr(reading.cost, name))
            observations.add_metric((reading.replica,), reading.observations)
            if reading.absolute_error is not None and reading.bias is not None:
                absolute.add_metric((reading.replica,), reading.absolute_error)
                bias.add_metric((reading.replica,), reading.bias)
        return (coefficients, absolute, bias, observations)
