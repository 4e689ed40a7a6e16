"""The tables: means with their confidence intervals by trace, and every record as it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from loadgen.report_page.records import MEASURES, SETTINGS, Estimate, Report
from loadgen.report_page.scales import number

_HEADS = {
    "relative_to_oracle": "TTFT / oracle",
    "hit_ratio": "Hit ratio",
    "ttft_mean_seconds": "Mean s",
    "ttft_p50_seconds": "p50 s",
    "ttft_p90_seconds": "p90 s",
    "ttft_p99_seconds": "p99 s",
    "busiest_share": "Busiest",
    "rejected": "Rejected",
}
# Of these, less is better; of a hit ratio, more is.
_LESS_IS_BETTER = (
    "relative_to_oracle",
    *(name for name in MEASURES if name.startswith("ttft")),
    "busiest_share",
)


def means_table(report: Report, trace: str) -> str:
    """Return the table of one trace: a row a variant; the best of each column, oracle aside, stands out."""
    groups = report.of_trace(trace)
    shown = [name for name in MEASURES if any(name in group.measures for group in groups)]
    best = {name: _best(report, trace, name) for name in shown}
    head = "".join(f'<th scope="col">{_HEADS[name]}</th>' for name in shown)
    rows = []
    for group in groups:
        cells = "".join(
            _cell(
                group.measures.get(name), group.measures.get(name) is not None and group.variant in best[name]
            )
            for name in shown
        )
        rows.append(f'<tr><th scope="row">{escape(group.variant)}</th>{cells}<td>{group.seeds}</td></tr>')
    return (
        f'<div class="card scroll"><table><caption>{escape(trace)}</caption><thead><tr>'
        f'<th scope="col">Policy</th>{head}<th scope="col">Seeds</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def records_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return all records as they came, one a row; nested fields are left out."""
    known = ("trace", "policy", *SETTINGS, "seed", *MEASURES)
    present = dict.fromkeys(name for record in records for name, value in record.items() if _plain(value))
    names = [name for name in known if name in present] + sorted(
        name for name in present if name not in known
    )
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(record.get(name)))}</td>" for name in names) + "</tr>"
        for record in records
    )
    return (
        f'<div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _best(report: Report, trace: str, measure: str) -> set[str]:
    """Return who is best, unless it is a matter of nothing; the oracle knows too much to compete."""
    found = {
        group.variant: group.measures[measure].mean
        for group in report.of_trace(trace)
        if measure in group.measures and group.variant.split(" · ")[0] != "oracle"
    }
    if len(found) < 2 or measure == "rejected":
        return set()
    best = min(found.values()) if measure in _LESS_IS_BETTER else max(found.values())
    return {variant for variant, mean in found.items() if mean == best}


def _cell(estimate: Estimate | None, best: bool) -> str:
    if estimate is None:
        return "<td>–</td>"
    spread = f" <small>±{number(estimate.half_width, 2)}</small>" if estimate.half_width else ""
    kind = ' class="best"' if best else ""
    return f"<td{kind}>{number(estimate.mean)}{spread}</td>"


def _plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _text(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value) if _plain(value) else "…"
