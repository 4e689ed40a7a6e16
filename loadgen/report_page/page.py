"""Writes the page: what it shows, section by section, and the file around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from loadgen.report_page.plots import (
    busiest,
    causes,
    curves,
    geometric_means,
    hit_ratios,
    percentiles,
    relative,
)
from loadgen.report_page.records import Report
from loadgen.report_page.style import STYLE
from loadgen.report_page.tables import means_table, records_table

_NAME = "index.html"


def write_page(
    records: Sequence[Mapping[str, Any]],
    directory: Path,
    *,
    title: str = "Routing policies compared",
    by: Sequence[str] = (),
) -> Path:
    """Write `index.html` into `directory`, made if need be, and return its path.

    Records are those of `kvring simulate --json`, in any order; beside its fields they may have
    `uncached_by_cause`, tokens by cause, and `ttft_cdf`, pairs of seconds and share. Runs that differ in
    a field of `by` are told apart, as those that differ in replicas or routers always are. The page depends
    on its arguments only. ValueError where there are no records, or one is malformed; OSError where the file
    cannot be written.
    """
    page = render(Report.of(records, by), title)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / _NAME
    path.write_text(page, encoding="utf-8")
    return path


def render(report: Report, title: str) -> str:
    """Return the page's HTML."""
    sections = [section for section in (_section(report, *plan) for plan in _PLAN) if section]
    links = "".join(f'<a href="#{anchor}">{escape(head)}</a>' for anchor, head, _ in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"<header><h1>{escape(title)}</h1><p>{escape(_summary(report))}</p></header><nav>{links}</nav>"
        f"{''.join(body for _, _, body in sections)}</main></body></html>\n"
    )


_Panels = Callable[[Report], Sequence[tuple[str, str]]]
# Anchor, headline, what to know when reading it, and the panels, each with a title.
_PLAN: tuple[tuple[str, str, str, _Panels], ...] = (
    (
        "overall",
        "All traces at a glance",
        "Mean time to first token (TTFT) relative to the oracle, which knows all caches and queues: its "
        "geometric mean over the traces. Left is better; the dashed line is the oracle.",
        geometric_means,
    ),
    (
        "relative",
        "Mean TTFT relative to the oracle",
        "On a logarithmic axis. Bars beside the dots are 95 % confidence intervals over seeds.",
        relative,
    ),
    (
        "hits",
        "Hit ratio",
        "Share of prompt tokens that were served from a cache. More is not always faster: a hit is worth "
        "little behind a long queue.",
        hit_ratios,
    ),
    (
        "ttft",
        "TTFT from median to tail",
        "Hollow dots are p50, p90 and p99, the full dot is the mean, on a logarithmic axis.",
        percentiles,
    ),
    (
        "curves",
        "How TTFT is distributed",
        "Share of the requests whose first token came within a time.",
        curves,
    ),
    (
        "busiest",
        "The busiest replica's share",
        "Of all requests, those of the replica that served most; the dashed line is an even share.",
        busiest,
    ),
    (
        "misses",
        "Why tokens were not cached",
        "Prompt tokens that had to be computed, by cause; the length of a bar is their mean number a run.",
        causes,
    ),
    (
        "figures",
        "All figures",
        "Means over seeds with half the width of their 95 % confidence interval. Best in each column, "
        "oracle aside, in bold.",
        lambda report: [("", means_table(report, trace)) for trace in report.traces],
    ),
)


def _section(
    report: Report, anchor: str, head: str, note: str, panels: _Panels
) -> tuple[str, str, str] | None:
    drawn = panels(report)
    if not drawn:
        return None
    bodies = "".join(
        f'<div class="card"><h3>{escape(title)}</h3>{body}</div>' if title else body for title, body in drawn
    )
    kind = "panels" if all(title for title, _ in drawn) else "stack"
    last = ""
    if anchor == "figures":
        count = len(report.records)
        last = f"<details><summary>Every record ({count})</summary>{records_table(report.records)}</details>"
    body = (
        f'<section id="{anchor}"><h2>{escape(head)}</h2><p>{escape(note)}</p>'
        f'<div class="{kind}">{bodies}</div>{last}</section>'
    )
    return anchor, head, body


def _summary(report: Report) -> str:
    seeds = len({str(record.get("seed")) for record in report.records})
    parts = [
        _count(len(report.records), "run"),
        _count(len(report.traces), "trace"),
        _count(len(report.variants), "policy" if len(report.variants) == 1 else "policies", plural=False),
        _count(seeds, "seed"),
    ]
    for name in ("replicas", "routers"):
        values = sorted({record[name] for record in report.records if isinstance(record.get(name), int)})
        if values:
            singular = name if values != [1] else name.removesuffix("s")
            parts.append(f"{', '.join(map(str, values))} {singular}")
    return " · ".join(parts)


def _count(count: int, noun: str, plural: bool = True) -> str:
    return f"{count:,} {noun}{'s' if plural and count != 1 else ''}"
