"""Pages of metrics: only wanted names are read, exactly, and a line that cannot be read is an error."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from router.engines.page import MetricsPage


def page(*lines: str) -> MetricsPage:
    return MetricsPage("".join(line + "\n" for line in lines).encode())


def test_values_are_read_in_all_their_forms() -> None:
    found = page(
        "# HELP a 7",
        "# TYPE a gauge",
        "a 1",
        'a{x="1"} 2.5e+06',
        'a{x="2",} +3 1764473835000',
        'a { x = "3" , y = "" }\t.5 # {trace_id="1"} 1 1.5',
        'a{x="4"}8\r',
        "aa 9",
        'a_total{x="1"} 10',
    ).samples("a")
    assert [(dict(sample.labels), sample.value) for sample in found] == [
        ({}, 1.0),
        ({"x": "1"}, 2_500_000.0),
        ({"x": "2"}, 3.0),
        ({"x": "3", "y": ""}, 0.5),
        ({"x": "4"}, 8.0),
    ]


def test_escaped_labels_are_read() -> None:
    labels = page(r'a{x="a \"b\" \\ \n, }{ c=\"d\"",y="2"} 1').labels("a")
    assert labels == [{"x": 'a "b" \\ \n, }{ c="d"', "y": "2"}]


def test_sums_and_means_take_the_first_name_that_is_there() -> None:
    text = page('a_total{x="1"} 1', 'a_total{x="2"} 2', "b 5", "c 0.5", 'c{x="1"} 1.001')
    assert text.total("a", "b") == 3
    assert text.total("none", "b") == 5
    assert text.total("none") is None
    assert text.mean_share("none", "c") == 0.75
    assert text.mean_share("none") is None


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a ",
        "a x",
        "a 1_000",
        "a infinity",
        "a 1 x",
        "a NaN",
        "a +Inf",
        "a -Inf",
        "a -1",
        'a{x="1} 1',
        'a{x="1"',
        "a{x=1} 1",
        'a{x="1" y="2"} 1',
        "a{} 1\na 2",
        'a{y="' + "z" * 70_000 + '"} 1',
    ],
)
def test_a_wanted_line_that_makes_no_sense_is_an_error(line: str) -> None:
    if line == "a":
        assert page(line).total("a") is None
        return
    with pytest.raises(ValueError, match="a"):
        page(line).total("a")
    assert page(line, "b 1").total("b") == 1


def test_a_page_that_breaks_off_is_no_smaller_number() -> None:
    with pytest.raises(ValueError, match="breaks off"):
        MetricsPage(b"a 1").total("a")


def test_a_page_has_bounds() -> None:
    with pytest.raises(ValueError, match="at most"):
        MetricsPage(b"x" * (10 << 20))
    many = "".join(f'a{{x="{number}"}} 1\n' for number in range(5000))
    with pytest.raises(ValueError, match="too often"):
        MetricsPage(many.encode()).total("a")


def test_the_process_is_named_by_its_start() -> None:
    assert page("process_start_time_seconds 1.76447383525e+09").process == "1764473835.25"
    assert page("a 1").process == ""


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=12), st.floats(0, 1e15)), max_size=6, unique_by=lambda pair: pair[0]),
    st.text(max_size=12),
)
def test_what_a_client_writes_is_read_back(values: list[tuple[str, float]], other: str) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("a:gauge", "help\nmore", ["label", "other"], registry=registry)
    counter = Counter("a:count", "help", ["label"], registry=registry)
    for label, value in values:
        gauge.labels(label, other).set(value)
        counter.labels(label).inc(value)
    text = MetricsPage(generate_latest(registry))
    samples = text.samples("a:gauge")
    found = [(sample.labels["label"], sample.labels["other"], sample.value) for sample in samples]
    assert sorted(found) == sorted((label, other, value) for label, value in values)
    assert (text.total("a:count") or 0.0) == pytest.approx(sum(value for _, value in values))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(before: bytes, after: bytes) -> None:
    try:
        total = MetricsPage(before + b"\na" + after).total("a")
    except ValueError:
        return
    assert total is None or total >= 0
