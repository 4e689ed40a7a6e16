"""The figures of a replay, live and simulated, under the same names and side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from loadgen.replay.drive import Replayed
from loadgen.simulate.run import Run


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of a trace. `source` says whether it was live or simulated.

    Requests of the warm-up are not counted. Of the others, `rejected` have no whole answer, and the figures
    are of the rest; None where there is none, or where it is not known. `hit_ratio` is of tokens;
    `relative_to_oracle` is of mean TTFT; `busiest_share` is the busiest replica's of the requests.
    """

    source: str
    trace: str
    policy: str
    replicas: int
    routers: int | None
    seed: int | None
    hit_ratio: float | None
    ttft_mean_seconds: float | None
    ttft_p50_seconds: float | None
    ttft_p90_seconds: float | None
    ttft_p99_seconds: float | None
    relative_to_oracle: float | None
    busiest_share: float | None
    rejected: int

    def to_json(self) -> dict[str, Any]:
        """Return the figures under the same names."""
        return asdict(self)


def live_figures(
    trace: str,
    policy: str,
    replayed: Sequence[Replayed],
    counted_from: int,
    oracle_mean_seconds: float | None,
) -> Figures:
    """Return the figures of answers; the hit ratio is of those whose usage tells cached tokens."""
    counted = replayed[counted_from:]
    whole = [one for one in counted if one.answer.error is None]
    usage = [
        (one.answer.prompt_tokens, one.answer.cached_tokens)
        for one in whole
        if one.answer.prompt_tokens is not None and one.answer.cached_tokens is not None
    ]
    prompt_tokens = sum(prompt for prompt, _ in usage)
    ttft = np.array([one.ttft_seconds for one in whole if one.ttft_seconds is not None], dtype=np.float64)
    shares = Counter(one.answer.replica for one in whole if one.answer.replica is not None)
    return Figures(
        source="live",
        trace=trace,
        policy=policy,
        replicas=len({one.answer.replica for one in replayed} - {None}),
        routers=None,
        seed=None,
        hit_ratio=sum(cached for _, cached in usage) / prompt_tokens if prompt_tokens else None,
        **_latencies(ttft, oracle_mean_seconds),
        busiest_share=max(shares.values()) / shares.total() if shares else None,
        rejected=len(counted) - len(whole),
    )


def simulated_figures(
    trace: str, policy: str, routers: int, seed: int, run: Run, oracle_mean_seconds: float | None
) -> Figures:
    """Return the figures of a simulated run."""
    counted = slice(run.counted_from, None)
    served = run.replica[counted] >= 0
    prompt_tokens = int(run.prompt_tokens[counted][served].sum())
    shares = np.bincount(run.replica[counted][served])
    return Figures(
        source="simulated",
        trace=trace,
        policy=policy,
        replicas=len(run.replica_names),
        routers=routers,
        seed=seed,
        hit_ratio=int(run.hit_tokens[counted][served].sum()) / prompt_tokens if prompt_tokens else None,
        **_latencies(run.ttft_seconds[counted][served], oracle_mean_seconds),
        busiest_share=float(shares.max() / shares.sum()) if len(shares) else None,
        rejected=int((~served).sum()),
    )


def _latencies(ttft: npt.NDArray[np.float64], oracle_mean_seconds: float | None) -> dict[str, float | None]:
    names = ("ttft_mean_seconds", "ttft_p50_seconds", "ttft_p90_seconds", "ttft_p99_seconds")
    if not len(ttft):
        return dict.fromkeys((*names, "relative_to_oracle"))
    mean = float(ttft.mean())
    values = (mean, *np.quantile(ttft, (0.5, 0.9, 0.99)).tolist())
    relative = mean / oracle_mean_seconds if oracle_mean_seconds else None
    return dict(zip((*names, "relative_to_oracle"), (*values, relative), strict=True))


_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("policy", lambda run: run.policy),
    ("replicas", lambda run: str(run.replicas)),
    ("token hit ratio", lambda run: _number(run.hit_ratio, 3)),
    ("TTFT mean", lambda run: _seconds(run.ttft_mean_seconds)),
    ("TTFT p50", lambda run: _seconds(run.ttft_p50_seconds)),
    ("TTFT p90", lambda run: _seconds(run.ttft_p90_seconds)),
    ("TTFT p99", lambda run: _seconds(run.ttft_p99_seconds)),
    ("mean TTFT to the oracle's", lambda run: _number(run.relative_to_oracle, 2)),
    ("busiest replica's share", lambda run: _number(run.busiest_share, 3)),
    ("without an answer", lambda run: f"{run.rejected:,}"),
)


def side_by_side(runs: Sequence[Figures]) -> Table:
    """Return a table with a column for each run."""
    table = Table(title=runs[0].trace if runs else None, title_justify="left")
    table.add_column("")
    for run in runs:
        table.add_column(run.source, justify="right")
    for label, figure in _ROWS:
        table.add_row(label, *(figure(run) for run in runs))
    return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f} s"
