"""Merge: the metrics of several processes added up; what each gauge becomes stands in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import fsum, inf, nextafter

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One value by its whole name and labels."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, array_like=True):
    """All samples of a metric."""

    name: str
    kind: str
    text: str
    samples: list[Sample]


Rule = Callable[[Iterable[float]], float]

# What workers hold or use themselves adds up; what all of them see of one fleet would be counted twice, so
# the worst of it is told. Gauges that are not named here are views as well, and the largest is told.
GAUGES: Mapping[str, Rule] = {
    "kvring_in_flight_requests": sum,
    "kvring_waiting_requests": sum,
    "kvring_replica_in_flight_requests": sum,
    "kvring_process_virtual_memory_bytes": sum,
    # Pages that processes share are counted for each.
    "kvring_process_resident_memory_bytes": sum,
    "kvring_process_open_fds": sum,
    # Against the sum of those that are open.
    "kvring_process_max_fds": sum,
    "kvring_process_start_time_seconds": min,
    # Estimates by each worker of its own traffic.
    "kvring_layout_requests": sum,
    "kvring_layout_prompt_tokens": sum,
    "kvring_layout_lost_tokens": sum,
    "kvring_layout_memory_bytes": sum,
    # Once for each that differs: workers that disagree are seen.
    "kvring_info": max,
    # A worker that does not reach something, or refused options that others took, must be seen.
    "kvring_replica_usable": min,
    "kvring_discovery_up": min,
    "kvring_redis_up": min,
    "kvring_config_current": min,
    "kvring_event_feed_connected": min,
    "kvring_replica_chain_mismatch": max,
    # The oldest news that any worker decides by.
    "kvring_discovery_age_seconds": max,
    "kvring_redis_age_seconds": max,
    "kvring_replica_digest_age_seconds": max,
    # What replicas last told everybody: of several views the most cautious.
    "kvring_replica_work_seconds": max,
    "kvring_replica_kv_usage_ratio": max,
    "kvring_replica_running_requests": max,
    "kvring_replica_waiting_requests": max,
    # One fleet, seen by each.
    "kvring_fleet_replicas": max,
    "kvring_fleet_left_out_members": max,
    "kvring_shared_routers": max,
    "kvring_index_blocks": max,
    "kvring_event_orphan_blocks": max,
    # What each has learned by itself, and the shadows by their own share of the traffic.
    "kvring_prefill_coefficient_seconds": max,
    "kvring_prefill_prediction_error_ratio": max,
    "kvring_prefill_prediction_bias_ratio": max,
    "kvring_shadow_busiest_share": max,
}
# Only these outlive the process that counted.
_LASTING = frozenset(("counter", "histogram", "summary"))
_decode = msgspec.msgpack.Decoder(list[Family]).decode


def snapshot(registry: Collector) -> bytes:
    """Return all metrics of a registry, as `families` reads them."""
    return msgspec.msgpack.encode([_family(metric) for metric in registry.collect()])


def packed(families: Iterable[Family]) -> bytes:
    """Return the same of families."""
    return msgspec.msgpack.encode(list(families))


def families(raw: bytes) -> list[Family]:
    """Read a snapshot; msgspec.MsgspecError if it is none."""
    return _decode(raw)


def merged(living: Iterable[Iterable[Family]], ended: Iterable[Family] = ()) -> list[Family]:
    """Add up counters and histograms, also those of processes that ended; gauges go by the table."""
    # Rounded once: in another order seconds must not come to the least bit less, which is read as a restart.
    return [
        _together(family, values, fsum if family.kind in _LASTING else GAUGES.get(family.name, max))
        for family, values in _gathered((*living, ended))
    ]


def lasting(told: Iterable[Family], ended: Iterable[Family] = ()) -> list[Family]:
    """Add what goes on to count, though its process has ended, to that of those that ended before.

    No sum with the result is less than it was with the parts: where it has to be rounded, it is rounded up.
    """
    return [
        _together(family, values, _sum_at_least)
        for family, values in _gathered((told, ended))
        if family.kind in _LASTING
    ]


def without(told: Iterable[Family], gone: Callable[[str], bool]) -> list[Family]:
    """Return the families without the series of replicas that are `gone`."""
    return [
        Family(
            family.name,
            family.kind,
            family.text,
            [one for one in family.samples if not gone(one.labels.get("replica", ""))],
        )
        for family in told
    ]


def replicas(told: Iterable[Family]) -> set[str]:
    """Return the names of the replicas that families tell of."""
    return {sample.labels.get("replica", "") for family in told for sample in family.samples}


def exposition(told: Iterable[Family]) -> bytes:
    """Return families as Prometheus reads them."""
    return generate_latest(_Held(told))


def registry_of(raw: bytes) -> CollectorRegistry:
    """Return a registry that holds just a snapshot's metrics."""
    registry = CollectorRegistry()
    registry.register(_Held(families(raw)))
    return registry


class _Held(Collector):
    """Families, for whoever reads a registry."""

    def __init__(self, told: Iterable[Family]) -> None:
        self._told = list(told)

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        for family in self._told:
            metric = Metric(family.name, family.text, family.kind)
            for sample in family.samples:
                metric.add_sample(sample.name, sample.labels, sample.value)
            yield metric


_Series = tuple[str, tuple[tuple[str, str], ...]]


def _series(sample: Sample) -> _Series:
    # Labels come in one order, as all workers run the same program.
    return sample.name, tuple(sample.labels.items())


def _family(metric: Metric) -> Family:
    samples = [
        Sample(name, labels, value)
        for name, labels, value, *_ in metric.samples
        # When each series began doubles the page, and nobody reads it.
        if not name.endswith("_created")
    ]
    return Family(metric.name, metric.type, metric.documentation, samples)


def _gathered(told: Iterable[Iterable[Family]]) -> Iterable[tuple[Family, dict[_Series, list[float]]]]:
    """Return each family, and all values of each of its series."""
    by_name: dict[str, tuple[Family, dict[_Series, list[float]]]] = {}
    for each in told:
        for family in each:
            _, values = by_name.setdefault(family.name, (family, {}))
            for sample in family.samples:
                values.setdefault(_series(sample), []).append(sample.value)
    return by_name.values()


def _sum_at_least(values: Iterable[float]) -> float:
    parts = list(values)
    total = fsum(parts)
    return nextafter(total, inf) if fsum((*parts, -total)) > 0 else total


def _together(family: Family, values: Mapping[_Series, list[float]], rule: Rule) -> Family:
    samples = [
        Sample(name, dict(labels), float(each[0] if len(each) == 1 else rule(each)))
        for (name, labels), each in values.items()
    ]
    return Family(family.name, family.kind, family.text, samples)
