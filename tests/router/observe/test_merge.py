"""Metrics of several processes as one: counts add up, and each gauge goes by its rule."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from router.config import RouterConfig
from router.gateway.core import Core
from router.observe.merge import (
    GAUGES,
    Family,
    Sample,
    exposition,
    families,
    lasting,
    merged,
    packed,
    registry_of,
    replicas,
    snapshot,
    without,
)


def _told(count: int, held: float, age: float, label: str = "r0") -> list[Family]:
    """What one process tells."""
    registry = CollectorRegistry()
    requests = Counter("kvring_requests", "Requests.", ("replica", "outcome"), registry=registry)
    requests.labels(label, "ok").inc(count)
    seconds = Histogram("kvring_wait_seconds", "Waits.", buckets=(1, 2), registry=registry)
    for _ in range(count):
        seconds.observe(1.5)
    Gauge("kvring_in_flight_requests", "Held.", registry=registry).set(held)
    Gauge("kvring_discovery_age_seconds", "Age.", ("source",), registry=registry).labels("dns").set(age)
    Gauge("kvring_discovery_up", "Up.", ("source",), registry=registry).labels("dns").set(age < 5)
    return families(snapshot(registry))


def _value(told: list[Family], name: str, **labels: str) -> float:
    (value,) = [
        sample.value
        for family in told
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return value


def test_counts_add_up_and_gauges_go_by_their_rules() -> None:
    both = merged([_told(3, 2, 7.0), _told(5, 4, 1.0)])
    assert _value(both, "kvring_requests_total", replica="r0", outcome="ok") == 8
    assert _value(both, "kvring_wait_seconds_bucket", le="1.0") == 0
    assert _value(both, "kvring_wait_seconds_bucket", le="2.0") == 8
    assert _value(both, "kvring_wait_seconds_count") == 8
    assert _value(both, "kvring_wait_seconds_sum") == pytest.approx(12)
    assert _value(both, "kvring_in_flight_requests") == 6
    assert _value(both, "kvring_discovery_age_seconds", source="dns") == 7
    assert _value(both, "kvring_discovery_up", source="dns") == 0


def test_who_ended_leaves_its_counts_alone() -> None:
    ended = lasting(_told(3, 2, 7.0))
    both = merged([_told(5, 4, 1.0)], lasting(ended, ended))
    assert _value(both, "kvring_requests_total", replica="r0", outcome="ok") == 11
    assert _value(both, "kvring_wait_seconds_count") == 11
    assert _value(both, "kvring_in_flight_requests") == 4
    assert _value(both, "kvring_discovery_up", source="dns") == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.floats(0, 1e6), min_size=2, max_size=4), min_size=1, max_size=8))
def test_a_sum_is_never_less_after_an_end(ends: list[list[float]]) -> None:
    """Each time the first of some processes ends; what it had counted is in the sum as before."""
    ended: list[Family] = []
    for counted in ends:
        living = [_counted(seconds) for seconds in counted]
        before = _value(merged(living, ended), "kvring_seconds_total")
        ended = lasting(living[0], ended)
        after = _value(merged(living[1:], ended), "kvring_seconds_total")
        assert before <= after <= before * (1 + 1e-12)


def _counted(seconds: float) -> list[Family]:
    return [Family("kvring_seconds", "counter", "Seconds.", [Sample("kvring_seconds_total", {}, seconds)])]


def test_series_that_only_one_has_are_kept() -> None:
    both = merged([_told(3, 0, 1.0, "r0"), _told(5, 0, 1.0, "r1")])
    assert _value(both, "kvring_requests_total", replica="r0", outcome="ok") == 3
    assert _value(both, "kvring_requests_total", replica="r1", outcome="ok") == 5
    assert replicas(both) == {"r0", "r1", ""}
    left = without(both, {"r0"}.__contains__)
    assert replicas(left) == {"r1", ""}
    assert _value(left, "kvring_wait_seconds_count") == 8


def test_one_process_is_exposed_as_it_would_do_itself() -> None:
    registry = CollectorRegistry()
    Counter("a", 'Says "so"\nand \\.', ("x",), registry=registry).labels('q"\n\\').inc()
    Gauge("b", "B.", registry=registry).set(float("inf"))
    Histogram("c", "C.", ("x",), registry=registry).labels("y").observe(0.3)
    itself = [line for line in generate_latest(registry).splitlines() if b"_created" not in line]
    alone = merged([families(snapshot(registry))])
    assert exposition(alone).splitlines() == itself
    read = registry_of(packed(alone))
    assert [one.name for one in read.restricted_registry(["b"]).collect()] == ["b"]
    assert read.get_sample_value("a_total", {"x": 'q"\n\\'}) == 1


async def test_every_gauge_has_a_rule() -> None:
    config = RouterConfig.load(
        flags={
            # Nobody listens there: what is shared has its metrics all the same.
            "redis": {"url": "redis://127.0.0.1:1"},
            "fleet": {"events": {"source": "replica"}},
            "observe": {"layout": {"sample_share": 1.0}},
        }
    )
    core = Core(config)
    try:
        gauges = {one.name for one in core.metrics.registry.collect() if one.type == "gauge"}
    finally:
        await core.stop()
    assert gauges == set(GAUGES)
