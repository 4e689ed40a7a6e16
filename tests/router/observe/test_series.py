"""Series: what they show is what prometheus_client shows of the same counts."""

from __future__ import annotations

import prometheus_client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from router.observe.series import counters, gauges, histograms

_BOUNDS = (2e-5, 0.01, 1, 2.5, 600)
_LABELS = ("replica", "outcome")
# What has to be escaped, what is none, and a few to meet again.
_values = st.sampled_from(["r0", "r1", 'a"b\\c\nd', "", "ü"])
_amounts = st.one_of(st.integers(0, 10**6), st.floats(0, 1e9), st.sampled_from(_BOUNDS))
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("count"), _values, _values, _amounts),
        st.tuples(st.just("drop"), st.sampled_from(_LABELS), _values),
        st.tuples(st.just("clear")),
    ),
    max_size=30,
)


def page(*collectors: Collector) -> list[str]:
    """The page of metrics, without when each series began."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@settings(max_examples=60, deadline=None)
@given(steps=_steps)
def test_families_show_what_those_of_prometheus_client_do(steps: list[tuple[object, ...]]) -> None:
    ours = (
        counters("c", "Counts.", _LABELS),
        gauges("g", 'Gauges \\ "quoted"\nof two lines.', _LABELS),
        histograms("h", "Histograms.", _BOUNDS, _LABELS),
    )
    theirs = (
        prometheus_client.Counter("c", "Counts.", _LABELS, registry=None),
        prometheus_client.Gauge("g", 'Gauges \\ "quoted"\nof two lines.', _LABELS, registry=None),
        prometheus_client.Histogram("h", "Histograms.", _LABELS, buckets=_BOUNDS, registry=None),
    )
    for step in steps:
        for counts, levels, spans in (ours, theirs):
            match step:
                case ("count", a, b, float() | int() as amount):
                    counts.labels(a, b).inc(amount)
                    levels.labels(a, b).set(amount)
                    spans.labels(a, b).observe(amount)
                case ("drop", str() as name, str() as value):
                    for family in (counts, levels, spans):
                        family.remove_by_labels({name: value})
                case _:
                    for family in (counts, levels, spans):
                        family.clear()
    assert page(*ours) == page(*theirs)


def test_a_family_without_labels_has_one_series_from_the_start_on() -> None:
    ours = (counters("c", "C."), gauges("g", "G."), histograms("h", "H.", _BOUNDS))
    theirs = (
        prometheus_client.Counter("c", "C.", registry=None),
        prometheus_client.Gauge("g", "G.", registry=None),
        prometheus_client.Histogram("h", "H.", buckets=_BOUNDS, registry=None),
    )
    assert page(*ours) == page(*theirs)
    for gauge in (ours[1].only(), theirs[1]):
        gauge.set_function(lambda: 7)
    assert page(*ours) == page(*theirs)
    for gauge in (ours[1].only(), theirs[1]):
        gauge.set(True)
    assert page(*ours)[-1] == page(*theirs)[-1]
    assert "g 1.0" in page(*ours)


def test_families_are_found_by_the_names_of_their_samples() -> None:
    registry = CollectorRegistry()
    for family in (counters("c", "C.", ("a",)), histograms("h", "H.", _BOUNDS)):
        registry.register(family)
    (found,) = registry.restricted_registry(["h_count"]).collect()
    assert [sample.name for sample in found.samples] == ["h_count"]
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(prometheus_client.Counter("c", "C.", registry=None))


def test_a_series_that_was_dropped_counts_from_zero() -> None:
    family = counters("c", "C.", ("a",))
    family.labels("x").inc(5)
    family.remove_by_labels({"a": "x"})
    assert page(family)[2:] == []
    family.of[("x",)].inc()
    assert page(family)[2:] == ['c_total{a="x"} 1.0']


def test_wrong_labels_and_counting_down_are_refused() -> None:
    family = counters("c", "C.", ("a",))
    with pytest.raises(ValueError, match="2 labels"):
        family.labels("x", "y")
    with pytest.raises(ValueError, match="only grow"):
        family.labels("x").inc(-1)
