"""Binned times: logs that round arrivals to bins of seconds, whose bursts no fleet ever saw."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

from loadgen.traces.trace import Trace, TraceRequest

SPREAD_SEED = 0
# A trace counts as binned if so many of its requests share their time with another one.
_SHARED_RATIO = 0.5
_LEAST_BIN_SECONDS = 0.1


def bin_seconds(trace: Trace) -> float | None:
    """Return the width of the bins that arrivals were rounded to, None if they were not.

    They were if at least half of the requests share their time with another one, and these times are mostly
    one width of 0.1 s or more apart.
    """
    counts = Counter(request.arrival_seconds for request in trace.requests)
    shared = sum(count for count in counts.values() if count > 1)
    if len(counts) < 2 or shared < _SHARED_RATIO * len(trace.requests):
        return None
    # To 10 ms: bins of 3 s are seen as 2.999 and 3.001 s, too.
    gaps = Counter(round(after - before, 2) for before, after in pairwise(sorted(counts)))
    width, count = gaps.most_common(1)[0]
    return width if width >= _LEAST_BIN_SECONDS and 2 * count >= gaps.total() else None


def spread_bins(trace: Trace, width_seconds: float, seed: int = SPREAD_SEED) -> Trace:
    """Spread the requests of each time uniformly over `width_seconds` from it on; their order is kept.

    The order is kept since a request may continue another one of its bin.
    """
    random = Random(seed)
    spread: list[TraceRequest] = []
    bins: dict[float, list[TraceRequest]] = {}
    for request in trace.requests:
        bins.setdefault(request.arrival_seconds, []).append(request)
    for start, requests in bins.items():
        offsets = sorted(random.uniform(0, width_seconds) for _ in requests)
        spread += [
            replace(request, arrival_seconds=start + offset)
            for request, offset in zip(requests, offsets, strict=True)
        ]
    spread.sort(key=lambda request: request.arrival_seconds)
    return replace(trace, requests=spread)
