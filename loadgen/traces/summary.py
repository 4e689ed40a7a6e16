"""What a trace is like, in figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadgen.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths in tokens: the mean and three percentiles."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Figures of one trace. `hit_bound` is the token hit ratio of one cache without limit, 0 to 1."""

    name: str
    block_tokens: int
    requests: int
    sessions: int
    duration_seconds: float
    prompt: Lengths
    output: Lengths
    distinct_blocks: int
    hit_bound: float

    def to_json(self) -> dict[str, Any]:
        """Return all figures, unrounded."""
        return asdict(self)

    def lines(self) -> list[tuple[str, str]]:
        """Return (label, figure) pairs to print."""
        return [
            ("trace", self.name),
            ("requests", f"{self.requests:,}"),
            ("sessions", f"{self.sessions:,}" if self.sessions else "not told"),
            ("duration", f"{self.duration_seconds:,.1f} s"),
            ("prompt tokens", _text(self.prompt)),
            ("answer tokens", _text(self.output)),
            ("tokens in a block", f"{self.block_tokens:,}"),
            ("different blocks", f"{self.distinct_blocks:,}"),
            ("hit bound", f"{self.hit_bound:.3f}"),
        ]


def summarise(trace: Trace) -> TraceSummary:
    """Return the figures of a trace of at least one request."""
    return TraceSummary(
        name=trace.name,
        block_tokens=trace.block_tokens,
        requests=len(trace.requests),
        sessions=len({request.session for request in trace.requests} - {None}),
        duration_seconds=trace.duration_seconds(),
        prompt=_lengths([request.prompt_tokens for request in trace.requests]),
        output=_lengths([request.output_tokens for request in trace.requests]),
        distinct_blocks=trace.distinct_blocks(),
        hit_bound=trace.hit_bound(),
    )


def _lengths(tokens: Sequence[int]) -> Lengths:
    p50, p90, p99 = np.quantile(tokens, (0.5, 0.9, 0.99)).tolist()
    return Lengths(float(np.mean(tokens)), p50, p90, p99)


def _text(lengths: Lengths) -> str:
    return f"mean {lengths.mean:,.0f}, p50 {lengths.p50:,.0f}, p90 {lengths.p90:,.0f}, p99 {lengths.p99:,.0f}"
