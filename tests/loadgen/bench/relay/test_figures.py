"""Figures are the least of their passes, and ratios are to our router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadgen.bench.relay.cells import COSTS, DELAYS, RelayOptions
from loadgen.bench.relay.figures import bottlenecks, failures, record_of
from loadgen.bench.relay.run import Measured, Pass
from loadgen.bench.relay.tables import parts_of
from loadgen.sheet import plain

CELLS = (COSTS[0], DELAYS[1])
PASS = Pass(
    units=1000,
    router_microseconds=100.0,
    caller_microseconds=10.0,
    replicas_microseconds=12.0,
    router_busy=0.9,
    caller_busy=0.1,
    replicas_busy=0.1,
    p50_milliseconds=1.0,
    p99_milliseconds=2.0,
    failures=0,
    failure="",
)


def measured(name: str, costs: Sequence[float], delays: Sequence[tuple[float, float]]) -> Measured:
    cost = [replace(PASS, router_microseconds=each) for each in costs]
    delay = [replace(PASS, p50_milliseconds=p50, p99_milliseconds=p99) for p50, p99 in delays]
    return Measured(name, "1.0", {"200 B": cost, "c16": delay}, 2 << 20, 3 << 20)


DIRECT = measured("direct", [0.0], [(0.5, 3.0), (0.4, 4.0)])
OURS = measured("kvring", [120.0, 100.0], [(2.0, 5.0), (1.4, 9.0)])
NGINX = measured("nginx", [25.0, 30.0], [(0.6, 4.5), (0.7, 3.5)])


def test_the_least_is_told_and_ratios_are_to_ours() -> None:
    record = record_of([DIRECT, OURS, NGINX], CELLS, RelayOptions(), ["envoy is not there"])
    ours, nginx = record["routers"]
    assert ours["costs"]["200 B"] == {"microseconds": 100.0, "ratio": 1.0}
    assert nginx["costs"]["200 B"] == {"microseconds": 25.0, "ratio": 0.25}
    # The least p50 and the least p99, each from whatever pass, less a replica's own.
    assert ours["delays"]["c16"] == pytest.approx(
        {"added_p50_milliseconds": 1.0, "added_p99_milliseconds": 2.0}
    )
    assert nginx["delays"]["c16"] == pytest.approx(
        {"added_p50_milliseconds": 0.2, "added_p99_milliseconds": 0.5}
    )
    assert nginx["memory_ratio"] == 1.0
    assert record["notices"] == ["envoy is not there"]
    assert record["failures"] == 0


def test_without_ours_there_are_no_ratios() -> None:
    record = record_of([DIRECT, NGINX], CELLS, RelayOptions(), [])
    assert record["routers"][0]["costs"]["200 B"]["ratio"] is None
    assert record["routers"][0]["memory_ratio"] is None
    assert not any("times what ours takes" in line for part in parts_of(record) for line in plain(part))


def test_a_busy_caller_is_told_of() -> None:
    busy = replace(PASS, router_microseconds=15.0, router_busy=0.5, caller_busy=0.97)
    slow = replace(PASS, router_microseconds=20.0, caller_busy=0.99)
    nginx = Measured("nginx", "1", {"200 B": [busy, slow]})
    (told,) = bottlenecks([nginx], CELLS[:1])
    assert told == "the caller held nginx up at 200 B: 97% of a core, where the router took 50%"
    assert bottlenecks([Measured("kvring", "1", {"200 B": [PASS]})], CELLS[:1]) == []


def test_failures_are_told_by_router() -> None:
    broken = Measured("nginx", "1", {"200 B": [PASS, replace(PASS, failures=2, failure="cut")]})
    assert failures([OURS, broken]) == "nginx: 2 failed, the first one so: cut"
    assert failures([OURS]) == ""


def test_tables_have_a_row_a_router() -> None:
    record = record_of([DIRECT, OURS, NGINX], CELLS, RelayOptions(), [])
    text = "\n".join(line for part in parts_of(record) for line in plain(part))
    for words in ("kvring 1.0  100.0", "nginx 1.0    25.0", "the least of 2 passes of 3 s", "16: p50"):
        assert words in text
