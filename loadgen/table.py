"""Shows summaries side by side: a row a figure, a column a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.table import Table

from loadgen.report import Summary

_ROWS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("requests", lambda run: f"{run.requests:,}"),
    ("errors", lambda run: _errors(run)),
    ("token hit ratio", lambda run: _ratio(run.token_hit_ratio)),
    ("prompt tokens", lambda run: f"{run.prompt_tokens:,}"),
    ("  of which computed", lambda run: f"{run.computed_tokens:,}"),
    ("TTFT p50", lambda run: _milliseconds(run.ttft_p50_seconds)),
    ("TTFT p90", lambda run: _milliseconds(run.ttft_p90_seconds)),
    ("TTFT p99", lambda run: _milliseconds(run.ttft_p99_seconds)),
    ("inter-token p50", lambda run: _milliseconds(run.inter_token_p50_seconds)),
    ("inter-token p99", lambda run: _milliseconds(run.inter_token_p99_seconds)),
    ("answer tokens/s", lambda run: f"{run.answer_tokens_per_second:,.1f}"),
    ("busiest replica's share", lambda run: _ratio(run.busiest_replica_ratio)),
    ("turns that kept their replica", lambda run: _ratio(run.kept_replica_ratio)),
    ("sessions turned away", lambda run: f"{run.sessions_turned_away:,}"),
    ("wall time", lambda run: f"{run.wall_seconds:,.1f} s"),
)


def comparison(runs: Mapping[str, Summary], title: str | None = None) -> Table:
    """Return a table with a column for each named run."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in runs:
        table.add_column(name, justify="right")
    for label, figure in _ROWS:
        table.add_row(label, *(figure(run) for run in runs.values()))
    return table


def _errors(run: Summary) -> str:
    if not run.errors:
        return "0"
    kinds = ", ".join(f"{kind} {count}" for kind, count in run.errors_by_kind.items())
    return f"{run.errors} ({kinds})"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"
