"""Figures of a trace."""

from __future__ import annotations

import pytest

from loadgen.traces.summary import summarise
from loadgen.traces.trace import Trace, TraceRequest


def test_the_figures_are_those_of_the_requests() -> None:
    requests = [TraceRequest(at, 10 * (at + 1), at, tuple(range(at + 1)), f"{at % 2}") for at in range(4)]
    summary = summarise(Trace("t", 10, requests))
    figures = summary.to_json()
    assert figures.pop("prompt") == pytest.approx({"mean": 25, "p50": 25, "p90": 37, "p99": 39.7})
    assert figures.pop("output") == pytest.approx({"mean": 1.5, "p50": 1.5, "p90": 2.7, "p99": 2.97})
    assert figures == {
        "name": "t",
        "block_tokens": 10,
        "requests": 4,
        "sessions": 2,
        "duration_seconds": 3.0,
        "distinct_blocks": 4,
        "hit_bound": 0.6,
    }
    assert dict(summary.lines())["hit bound"] == "0.600"
