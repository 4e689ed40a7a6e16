"""The model by hand: one replica's queue, its cache, and what a prefill takes."""

from __future__ import annotations

import pytest

from tests.loadgen.simulate.scenes import WATCHER, request, run, trace_of


def test_prefills_wait_in_line_and_cost_what_is_not_cached() -> None:
    trace = trace_of(
        request(0, 250, 1, 2, 3),
        request(1, 250, 1, 2, 4),
        request(20, 200, 1, 2),
    )
    done = run(trace)
    # 1 + 0.01 * 250 + 1e-4 * 250 * 125: it ends at 6.625; the second computes 50 tokens behind 200 others.
    assert done.ttft_seconds[0] == pytest.approx(6.625)
    assert done.ttft_seconds[1] == pytest.approx(6.625 - 1 + 1 + 0.5 + 1e-4 * 50 * 225)
    # Its last block would hit, but one token at least is computed, and blocks hit whole.
    assert done.ttft_seconds[2] == pytest.approx(1 + 1.0 + 1e-4 * 100 * 150)
    assert done.hit_tokens.tolist() == [0, 200, 100]
    assert done.prefill_seconds == pytest.approx(6.625 + 2.625 + 3.5)
    assert done.utilisation == pytest.approx(done.prefill_seconds / 20)


def test_who_comes_first_is_served_first() -> None:
    trace = trace_of(request(0, 900), *(request(number, 1) for number in (1, 2, 3)), block_tokens=1000)
    done = run(trace)
    ends = done.arrival_seconds + done.ttft_seconds
    assert list(ends) == sorted(ends)
    assert ends[1] == pytest.approx(ends[0] + 1 + 0.01 + 1e-4 * 0.5)


def test_the_hit_is_what_is_cached_when_the_prefill_starts() -> None:
    # When the third arrives its blocks are there; the second, before it in the queue, drives them out.
    trace = trace_of(
        request(0, 300, 1, 2, 3),
        request(20, 400, 11, 12, 13, 14),
        request(21, 301, 1, 2, 3),
    )
    assert run(trace, cache_blocks=4).hit_tokens.tolist() == [0, 0, 0]
    assert run(trace, cache_blocks=7).hit_tokens.tolist() == [0, 0, 300]
    # And the other way round: nothing was there when the second arrived, behind the first.
    queued = trace_of(request(0, 300, 1, 2, 3), request(0.1, 301, 1, 2, 3))
    assert run(queued).hit_tokens.tolist() == [0, 300]


def test_the_least_recently_used_goes_first_and_a_prompts_tail_before_its_head() -> None:
    trace = trace_of(
        request(0, 301, 1, 2, 3),
        request(50, 101, 21),
        request(100, 101, 1),  # used again: its first block is now the freshest
        request(150, 201, 31, 32),
        request(200, 301, 1, 2, 3),
    )
    # Five blocks: 1 2 3 21, one left, which takes 31; 32 takes the place of 3, the tail of what is oldest.
    assert run(trace, cache_blocks=5).hit_tokens.tolist() == [0, 0, 100, 0, 200]


def test_decodes_slow_prefills_down() -> None:
    trace = trace_of(request(0, 100, 1, output=1000), request(10, 100, 2), request(100, 100, 3))
    alone = 1 + 1.0 + 1e-4 * 100 * 50
    slowed = run(trace, decode_slots=2, decode_slowdown=0.3, decode_seconds_per_token=0.025)
    # One of two slots decodes until 27 s.
    assert slowed.ttft_seconds.tolist() == pytest.approx([alone, alone * 1.15, alone])
    assert run(trace).ttft_seconds.tolist() == pytest.approx([alone] * 3)


def test_time_is_scaled_by_dividing_arrivals() -> None:
    trace = trace_of(request(0, 100, 1), request(8, 100, 2), request(16, 100, 3))
    assert run(trace, time_scale=1).ttft_seconds.max() == pytest.approx(2.5)
    fast = run(trace, time_scale=8)
    assert fast.arrival_seconds.tolist() == [0, 1, 2]
    assert fast.ttft_seconds.tolist() == pytest.approx([2.5, 4.0, 5.5])


def test_a_prompt_larger_than_the_cache_is_turned_away_and_the_rest_goes_on() -> None:
    trace = trace_of(request(0, 100, 1), request(1, 500, 1, 2, 3, 4, 5), request(2, 101, 1))
    done = run(trace, cache_blocks=4)
    assert done.replica.tolist() == [0, -1, 0]
    assert done.hit_tokens.tolist() == [0, 0, 100]
    assert done.ttft_seconds[1] != done.ttft_seconds[1]
    assert sum(done.uncached.values()) == 100 + 1
    assert run(trace, cache_blocks=5).replica.tolist() == [0, 0, 0]


def test_a_wrong_s_changes_what_policies_see_and_nothing_else() -> None:
    trace = trace_of(*(request(number, 100, number) for number in range(20)))
    right = run(trace, policy=WATCHER, policy_options={"tells": "prefill"})
    wrong = run(trace, policy=WATCHER, policy_options={"tells": "prefill"}, believed_scale=3)
    assert set(right.expected_tokens.tolist()) == {2500}
    assert set(wrong.expected_tokens.tolist()) == {7500}
    assert wrong.ttft_seconds.tolist() == right.ttft_seconds.tolist()
    # What replicas report is in their own, wrong seconds too.
    waits = [
        run(trace, policy=WATCHER, policy_options={"tells": "wait"}, believed_scale=scale).expected_tokens
        for scale in (1, 3)
    ]
    assert waits[1][1:].tolist() > waits[0][1:].tolist()
