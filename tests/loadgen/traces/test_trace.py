"""Traces: what they refuse, and what is derived from them."""

from __future__ import annotations

import math

import pytest

from loadgen.traces.trace import Trace, TraceError, TraceRequest


def request(arrival: float, tokens: int, *ids: int) -> TraceRequest:
    return TraceRequest(arrival, tokens, 1, ids)


@pytest.mark.parametrize(
    ("arrival", "prompt", "output", "message"),
    [
        (-1, 1, 1, "arrival"),
        (math.nan, 1, 1, "arrival"),
        (math.inf, 1, 1, "arrival"),
        (0, 0, 1, "at least one token"),
        (0, 1, -1, "cannot have -1 tokens"),
    ],
)
def test_a_request_refuses_what_cannot_be(arrival: float, prompt: int, output: int, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        TraceRequest(arrival, prompt, output, ())


def test_requests_come_in_the_order_of_arrival() -> None:
    with pytest.raises(TraceError, match="request 2 of x arrives before"):
        Trace("x", 4, [request(1, 4, 1), request(0, 4, 1)])


@pytest.mark.parametrize(("tokens", "ids"), [(9, (1,)), (9, (1, 2, 3, 4)), (8, (1, 2, 3))])
def test_ids_cover_the_prompt_and_no_more(tokens: int, ids: tuple[int, ...]) -> None:
    with pytest.raises(TraceError, match=f"{len(ids)} block ids for {tokens} tokens"):
        Trace("x", 4, [request(0, tokens, *ids)])


def test_a_partial_block_may_have_an_id_or_none() -> None:
    trace = Trace("x", 4, [request(0, 9, 1, 2, 3), request(0, 9, 1, 2)])
    assert [trace.full_blocks(one) for one in trace.requests] == [(1, 2), (1, 2)]
    assert trace.distinct_blocks() == 3


def test_the_bound_counts_full_blocks_and_leaves_one_token() -> None:
    # The second prompt is the first: 7 of 8 tokens hit. The third shares a block, the fourth a partial one.
    trace = Trace(
        "x", 4, [request(0, 8, 1, 2), request(1, 8, 1, 2), request(2, 6, 1, 3), request(3, 6, 1, 3)]
    )
    assert trace.hit_bound() == (7 + 4 + 4) / 28
    assert Trace("empty", 4, []).hit_bound() == 0


def test_a_time_scale_raises_the_rate() -> None:
    trace = Trace("x", 4, [request(1, 4, 1), request(5, 4, 1)])
    assert trace.duration_seconds() == 4
    assert [one.arrival_seconds for one in trace.scaled(2).requests] == [0.5, 2.5]
    for scale in (0, -1, math.nan, math.inf):
        with pytest.raises(TraceError, match="time scale"):
            trace.scaled(scale)
