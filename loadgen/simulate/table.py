"""Shows records as a table: a row a trace and policy, means over seeds with their confidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from loadgen.report_page.records import Estimate

_COLUMNS = (
    ("TTFT / oracle", "relative_to_oracle", "{:.3f}"),
    ("hit", "hit_ratio", "{:.3f}"),
    ("mean TTFT", "ttft_mean_seconds", "{:.3f} s"),
    ("p50", "ttft_p50_seconds", "{:.3f} s"),
    ("p90", "ttft_p90_seconds", "{:.2f} s"),
    ("p99", "ttft_p99_seconds", "{:.2f} s"),
    ("busiest", "busiest_share", "{:.1%}"),
    ("rejected", "rejected", "{:.0f}"),
)


def records_table(records: Sequence[dict[str, Any]]) -> Table:
    """Return the table; beside the ratio to the oracle stands half of its 95 % interval."""
    table = Table()
    table.add_column("trace", overflow="fold")
    table.add_column("policy", overflow="fold")
    for title, _, _ in _COLUMNS:
        table.add_column(title, justify="right")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["trace"], record["policy"]), []).append(record)
    for (trace, policy), group in groups.items():
        table.add_row(trace, policy, *(_cell(group, name, form) for _, name, form in _COLUMNS))
    return table


def _cell(group: Sequence[dict[str, Any]], name: str, form: str) -> str:
    values = [record[name] for record in group if record[name] is not None]
    if not values:
        return "-"
    estimate = Estimate.of(values)
    shown = form.format(estimate.mean)
    if name == "relative_to_oracle" and estimate.half_width is not None:
        shown += f" ±{estimate.half_width:.3f}"
    return shown
