"""Bounds of traces: the known ones, and how sessions go on."""

from __future__ import annotations

import pytest

from loadgen.ceiling.bound import BoundMeter
from loadgen.ceiling.sessions import session_breaks
from loadgen.traces.catalog import open_trace
from loadgen.traces.trace import Trace, TraceRequest


@pytest.mark.parametrize(("name", "bound"), [("synthetic", 0.651), ("hotspot", 0.909)])
def test_bounds_of_shipped_traces(name: str, bound: float) -> None:
    trace = open_trace(name)
    meter = BoundMeter(trace.block_tokens)
    for request in trace.requests:
        meter.add(trace.full_blocks(request), request.prompt_tokens)
    measured = meter.bound()
    assert measured.hit_ratio == pytest.approx(trace.hit_bound(), abs=1e-9)
    assert measured.hit_ratio == pytest.approx(bound, abs=0.001)
    # More blocks never hold less, and enough of them hold all.
    hits = [hit for _, hit in measured.by_blocks]
    assert hits == sorted(hits)
    assert hits[-1] == measured.hit_tokens
    assert measured.by_blocks[-2][0] < measured.distinct_blocks <= measured.by_blocks[-1][0]


def test_the_last_token_is_always_computed() -> None:
    meter = BoundMeter(16, sizes_blocks=(2,))
    meter.add([1, 2], 32)
    assert meter.add([1, 2], 32) == 31
    assert meter.bound().by_blocks == ((2, 31),)


def test_sizes_are_those_asked_for() -> None:
    meter = BoundMeter(16, sizes_blocks=(3, 1, 1000))
    for _ in range(2):
        meter.add([1, 2, 3], 50)
    assert meter.bound().by_blocks == ((1, 16), (3, 48), (1000, 48))


def test_sessions_that_append_and_that_break() -> None:
    def turn(at: int, session: str, *blocks: int) -> TraceRequest:
        return TraceRequest(float(at), 16 * len(blocks), 1, blocks, session)

    requests = [
        turn(0, "a", 1, 2),
        turn(1, "a", 1, 2, 3),
        turn(2, "a", 1, 2, 3, 4),
        # A clean break, with one block kept, then it goes on appending.
        turn(3, "a", 1, 20, 21),
        turn(4, "a", 1, 20, 21, 22),
        # And another so soon that it is no clean one.
        turn(5, "a", 1, 30, 31),
        turn(6, "b", 1, 2),
    ]
    breaks = session_breaks(Trace("t", 16, requests))
    assert breaks is not None
    assert (breaks.sessions, breaks.turns, breaks.appended) == (2, 5, 3)
    assert (breaks.clean_breaks, breaks.clean_left_tokens) == (1, 3 * 16)
    assert (breaks.repeated_breaks, breaks.repeated_left_tokens) == (1, 3 * 16)
    assert session_breaks(Trace("t", 16, [TraceRequest(0.0, 16, 1, (1,))])) is None
