"""Reads records, and sums up those that differ in nothing but their seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log, sqrt
from typing import Any

# Two-sided 95 % quantiles of Student's t for 1, 2, 3 ... degrees of freedom; beyond, the normal's.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL = 1.96

SETTINGS = ("replicas", "routers")
MEASURES = (
    "relative_to_oracle",
    "hit_ratio",
    "ttft_mean_seconds",
    "ttft_p50_seconds",
    "ttft_p90_seconds",
    "ttft_p99_seconds",
    "busiest_share",
    "rejected",
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds, and half the width of its 95 % confidence interval; None for a single seed."""

    mean: float
    half_width: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Estimate from at least one value."""
        count = len(values)
        mean = sum(values) / count
        if count == 1:
            return cls(mean, None, 1)
        deviation = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
        quantile = _STUDENT[count - 2] if count - 2 < len(_STUDENT) else _NORMAL
        return cls(mean, quantile * deviation / sqrt(count), count)

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + (self.half_width or 0.0)


@dataclass(frozen=True, slots=True)
class Group:
    """The runs of one trace and variant. `cdf` is pairs of seconds and shares, `causes` tokens by cause."""

    trace: str
    variant: str
    replicas: int | None
    seeds: int
    measures: Mapping[str, Estimate]
    cdf: Sequence[tuple[float, float]]
    causes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Report:
    """All groups; `traces` and `variants` in the order in which they are shown, best variant first."""

    records: Sequence[Mapping[str, Any]]
    traces: Sequence[str]
    variants: Sequence[str]
    groups: Mapping[tuple[str, str], Group]

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]], by: Sequence[str] = ()) -> Report:
        """Group the records; those that differ in a field of `by` are told apart.

        ValueError where there are none, or one is not a record; the message says which.
        """
        if not records:
            raise ValueError("there are no records to report on")
        for number, record in enumerate(records, 1):
            _check(number, record)
        settings = [name for name in (*SETTINGS, *by) if len({str(r.get(name)) for r in records}) > 1]
        found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for record in records:
            found.setdefault((record["trace"], _variant(record, settings)), []).append(record)
        groups = {key: _group(*key, members) for key, members in found.items()}
        traces = list(dict.fromkeys(trace for trace, _ in groups))
        variants = sorted(dict.fromkeys(variant for _, variant in groups), key=lambda one: _rank(one, groups))
        return cls(records, traces, variants, groups)

    def of_trace(self, trace: str) -> list[Group]:
        """Return the groups of a trace, in the variants' order."""
        return [self.groups[trace, one] for one in self.variants if (trace, one) in self.groups]

    def geometric_mean(self, variant: str) -> float | None:
        """Return the mean over all traces of the TTFT relative to the oracle; None unless all have one."""
        return _geometric_mean([self._mean(trace, variant, "relative_to_oracle") for trace in self.traces])

    def _mean(self, trace: str, variant: str, measure: str) -> float | None:
        group = self.groups.get((trace, variant))
        estimate = group.measures.get(measure) if group else None
        return estimate.mean if estimate else None


def _check(number: int, record: object) -> None:
    if not isinstance(record, Mapping):
        raise ValueError(f"record {number} is no object")
    for name in ("trace", "policy"):
        if not isinstance(record.get(name), str):
            raise ValueError(f"record {number}: {name} must be a text")
    for name in MEASURES:
        if record.get(name) is not None:
            _number(number, name, record[name])
    cdf = record.get("ttft_cdf") or []
    causes = record.get("uncached_by_cause") or {}
    if not isinstance(cdf, Sequence) or not all(isinstance(p, Sequence) and len(p) == 2 for p in cdf):
        raise ValueError(f"record {number}: ttft_cdf must be a list of pairs")
    if not isinstance(causes, Mapping):
        raise ValueError(f"record {number}: uncached_by_cause must be an object")
    for value in (*(value for pair in cdf for value in pair), *causes.values()):
        _number(number, "ttft_cdf or uncached_by_cause", value)


def _number(number: int, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise ValueError(f"record {number}: {name} must be a finite number of at least 0")


def _variant(record: Mapping[str, Any], settings: Sequence[str]) -> str:
    parts = [f"{name.replace('_', ' ')} {record.get(name)}" for name in settings]
    return " · ".join([record["policy"], *parts])


def _group(trace: str, variant: str, records: Sequence[Mapping[str, Any]]) -> Group:
    measures = {}
    for name in MEASURES:
        values = [float(record[name]) for record in records if record.get(name) is not None]
        if values:
            measures[name] = Estimate.of(values)
    curves = [record["ttft_cdf"] for record in records if record.get("ttft_cdf")]
    causes: dict[str, float] = {}
    for record in records:
        for cause, tokens in (record.get("uncached_by_cause") or {}).items():
            causes[str(cause)] = causes.get(str(cause), 0.0) + tokens / len(records)
    replicas = records[0].get("replicas")
    return Group(
        trace,
        variant,
        replicas if isinstance(replicas, int) and replicas > 0 else None,
        len(records),
        measures,
        # One seed's curve stands for all: a mean of curves would be of no run.
        tuple((float(seconds), float(share)) for seconds, share in curves[0]) if curves else (),
        causes,
    )


def _rank(variant: str, groups: Mapping[tuple[str, str], Group]) -> tuple[float, str]:
    """Best first: by TTFT relative to the oracle, or by TTFT itself; the oracle before all others."""
    own = [group.measures for (_, name), group in groups.items() if name == variant]
    for measure in ("relative_to_oracle", "ttft_mean_seconds"):
        mean = _geometric_mean([one[measure].mean if measure in one else None for one in own])
        if mean is not None:
            return (-1.0 if variant.split(" · ")[0] == "oracle" else mean, variant)
    return float("inf"), variant


def _geometric_mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None and value > 0]
    if not found or len(found) < len(values):
        return None
    return exp(sum(map(log, found)) / len(found))
