"""The figures of one simulated run, and every decision of it, as plain records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from loadgen.simulate.run import Run

_CURVE_POINTS = 101


def mean_ttft_seconds(run: Run) -> float | None:
    """Return the mean TTFT of the counted requests, None if none was served."""
    ttft = run.ttft_seconds[run.counted_from :]
    ttft = ttft[~np.isnan(ttft)]
    return float(ttft.mean()) if len(ttft) else None


def record_of(
    run: Run, trace: str, policy: str, replicas: int, routers: int, seed: int, oracle_mean: float | None
) -> dict[str, Any]:
    """Return a run's figures: ratios of tokens and of requests, seconds; None where nothing was served.

    Over the counted requests, those behind the warm-up. `relative_to_oracle` is of mean TTFT.
    `uncached_by_cause` is in tokens, `ttft_cdf` pairs of seconds and share.
    """
    counted = slice(run.counted_from, None)
    served = run.replica[counted] >= 0
    ttft = run.ttft_seconds[counted][served]
    prompt_tokens = int(run.prompt_tokens[counted][served].sum())
    shares = np.bincount(run.replica[counted][served]) if served.any() else np.zeros(0, dtype=np.int64)
    mean = float(ttft.mean()) if len(ttft) else None
    p50, p90, p99 = np.quantile(ttft, (0.5, 0.9, 0.99)).tolist() if len(ttft) else (None,) * 3
    share = np.linspace(0, 1, _CURVE_POINTS)
    curve = zip(np.quantile(ttft, share).tolist(), share.tolist(), strict=True) if len(ttft) else ()
    return {
        "trace": trace,
        "policy": policy,
        "replicas": replicas,
        "routers": routers,
        "seed": seed,
        "requests": len(served),
        "hit_ratio": int(run.hit_tokens[counted][served].sum()) / prompt_tokens if prompt_tokens else None,
        "ttft_mean_seconds": mean,
        "ttft_p50_seconds": p50,
        "ttft_p90_seconds": p90,
        "ttft_p99_seconds": p99,
        "relative_to_oracle": mean / oracle_mean if mean is not None and oracle_mean else None,
        "busiest_share": float(shares.max() / shares.sum()) if len(shares) else None,
        "rejected": int((~served).sum()),
        "utilisation": run.utilisation,
        "uncached_by_cause": run.uncached,
        "ttft_cdf": [[round(seconds, 6), round(at, 4)] for seconds, at in curve],
    }


def decisions_of(run: Run) -> Iterator[dict[str, Any]]:
    """Yield a record for each request, in order of arrival; None where it was rejected."""
    columns = zip(
        run.arrival_seconds.tolist(),
        run.router.tolist(),
        run.replica.tolist(),
        run.prompt_tokens.tolist(),
        run.expected_tokens.tolist(),
        run.hit_tokens.tolist(),
        run.ttft_seconds.tolist(),
        strict=True,
    )
    for number, (arrival, router, replica, prompt, expected, hit, ttft) in enumerate(columns):
        served = replica >= 0
        yield {
            "request": number,
            "counted": number >= run.counted_from,
            "arrival_seconds": arrival,
            "router": router,
            "replica": run.replica_names[replica] if served else None,
            "prompt_tokens": prompt,
            "expected_tokens": expected if served else None,
            "hit_tokens": hit if served else None,
            "ttft_seconds": ttft if served else None,
        }
