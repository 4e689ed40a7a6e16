"""Binned times: seen where they are, and spread without changing the order."""

from __future__ import annotations

from random import Random

from loadgen.traces.bins import bin_seconds, spread_bins
from loadgen.traces.trace import Trace, TraceRequest


def trace(times: list[float]) -> Trace:
    return Trace("x", 4, [TraceRequest(time, 4, 1, (number,)) for number, time in enumerate(sorted(times))])


def test_bins_are_seen_through_jitter_and_gaps() -> None:
    random = Random(1)
    starts = [3.0 * number + random.choice((0, 0, 0.001)) for number in range(80) if number % 7]
    times = [random.choice(starts) for _ in range(600)]
    assert bin_seconds(trace(times)) == 3.0


def test_other_times_are_not_taken_for_bins() -> None:
    random = Random(1)
    assert bin_seconds(trace([random.uniform(0, 100) for _ in range(300)])) is None
    assert bin_seconds(trace([float(second) for second in range(100)])) is None
    assert bin_seconds(trace([0.0] * 100)) is None
    # Rounded to milliseconds, with many at once: those are coincidences, no bins.
    assert bin_seconds(trace([round(random.uniform(0, 1), 3) for _ in range(3000)])) is None


def test_requests_stay_in_order_inside_their_bin() -> None:
    binned = trace([0.0] * 50 + [3.0] * 50)
    spread = spread_bins(binned, 3.0, seed=4)
    assert [one.block_ids for one in spread.requests] == [one.block_ids for one in binned.requests]
    times = [one.arrival_seconds for one in spread.requests]
    assert times == sorted(times)
    assert all(0 <= time < 3 for time in times[:50])
    assert all(3 <= time < 6 for time in times[50:])
    assert len(set(times)) == 100
