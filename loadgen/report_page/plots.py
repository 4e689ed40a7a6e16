"""The plots, each a list of titled panels; an empty one where no record has what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from loadgen.report_page import scales, svg
from loadgen.report_page.records import Estimate, Group, Report

# In the order of their precedence; others follow by name.
_CAUSES = (
    "cold",
    "evicted",
    "routed_by_load",
    "routed_by_membership",
    "key_mismatch",
    "stale_digest",
    "partial_block",
    "unknown",
)
_PERCENTILES = ("ttft_p50_seconds", "ttft_p90_seconds", "ttft_p99_seconds")

Panels = list[tuple[str, str]]


def geometric_means(report: Report) -> Panels:
    """One panel over all traces, where there are several and each variant was run on all of one trace set."""
    found = [(one, mean) for one in report.variants if (mean := report.geometric_mean(one)) is not None]
    if len(report.traces) < 2 or not found:
        return []
    rows = [
        svg.Row(
            variant,
            report.variants.index(variant),
            scales.times(mean),
            f"{variant}: {scales.times(mean)} the oracle's mean TTFT",
            [svg.Mark(mean, mean, mean)],
        )
        for variant, mean in found
    ]
    title = f"Geometric mean over {', '.join(report.traces)}"
    scale = scales.logarithmic([1.0, *(mean for _, mean in found)])
    return [(title, svg.dot_rows(title, rows, scale, _axis_times, line=1.0))]


def relative(report: Report) -> Panels:
    """A panel a trace."""
    panels = []
    for trace in report.traces:
        groups = [group for group in report.of_trace(trace) if "relative_to_oracle" in group.measures]
        if not groups:
            continue
        estimates = [group.measures["relative_to_oracle"] for group in groups]
        scale = scales.logarithmic([1.0, *_ends(estimates)])
        rows = [_row(report, group, "relative_to_oracle", scales.times) for group in groups]
        panels.append(
            (
                trace,
                svg.dot_rows(f"Mean TTFT relative to the oracle on {trace}", rows, scale, _axis_times, 1.0),
            )
        )
    return panels


def hit_ratios(report: Report) -> Panels:
    """A panel a trace, from 0 to 1."""
    panels = []
    for trace in report.traces:
        groups = [group for group in report.of_trace(trace) if "hit_ratio" in group.measures]
        if groups:
            rows = [_row(report, group, "hit_ratio", scales.percent) for group in groups]
            drawn = svg.dot_rows(
                f"Hit ratio on {trace}", rows, scales.linear((), most=1.0), scales.axis_percent
            )
            panels.append((trace, drawn))
    return panels


def percentiles(report: Report) -> Panels:
    """A panel a trace: median, p90 and p99 as hollow marks along one line, and the mean."""
    panels = []
    for trace in report.traces:
        rows = []
        for group in report.of_trace(trace):
            told = [group.measures[name].mean for name in _PERCENTILES if name in group.measures]
            mean = group.measures.get("ttft_mean_seconds")
            if told and mean is not None:
                marks = [svg.Mark(told[0], told[0], told[-1], True)]
                marks += [svg.Mark(value, value, value, True) for value in told[1:]]
                marks.append(svg.Mark(mean.mean, mean.mean, mean.mean))
                names = ", ".join(
                    f"{name[5:8]} {scales.seconds(group.measures[name].mean)}"
                    for name in _PERCENTILES
                    if name in group.measures
                )
                hint = f"{group.variant}: mean {scales.seconds(mean.mean)}, {names}"
                colour = report.variants.index(group.variant)
                rows.append(svg.Row(group.variant, colour, scales.seconds(mean.mean), hint, marks))
        if rows:
            scale = scales.logarithmic(mark.value for row in rows for mark in row.marks)
            panels.append((trace, svg.dot_rows(f"TTFT on {trace}", rows, scale, scales.axis_seconds)))
    return panels


def curves(report: Report) -> Panels:
    """A panel a trace, with its own legend."""
    panels = []
    for trace in report.traces:
        groups = [group for group in report.of_trace(trace) if len(group.cdf) > 1]
        if not groups:
            continue
        numbers = [report.variants.index(group.variant) for group in groups]
        across = scales.logarithmic(x for group in groups for x, share in group.cdf if x > 0)
        lines = [
            svg.Curve(number, group.variant, [point for point in group.cdf if point[0] > 0])
            for number, group in zip(numbers, groups, strict=True)
        ]
        up = scales.linear((), most=1.0)
        drawn = svg.curves(
            f"Distribution of TTFT on {trace}", lines, across, scales.axis_seconds, up, scales.axis_percent
        )
        legend = "".join(
            f'<li class="c{number % svg.COLOURS}"><svg width="28" height="10" aria-hidden="true">'
            f'<line x1="0" x2="28" y1="5" y2="5" stroke-dasharray="{svg.DASHES[number // svg.COLOURS % 4]}"/>'
            f"</svg><span>{escape(group.variant)}</span></li>"
            for number, group in zip(numbers, groups, strict=True)
        )
        panels.append((trace, f'<ul class="legend">{legend}</ul>{drawn}'))
    return panels


def busiest(report: Report) -> Panels:
    """A panel a trace; the even share is marked where all have as many replicas."""
    panels = []
    for trace in report.traces:
        groups = [group for group in report.of_trace(trace) if "busiest_share" in group.measures]
        if not groups:
            continue
        counts = {group.replicas for group in groups}
        even = 1 / count if len(counts) == 1 and (count := counts.pop()) else None
        scale = scales.linear([*_ends([group.measures["busiest_share"] for group in groups]), even or 0.0])
        rows = [_row(report, group, "busiest_share", scales.percent) for group in groups]
        drawn = svg.dot_rows(
            f"The busiest replica's share on {trace}", rows, scale, scales.axis_percent, even
        )
        panels.append((trace, drawn))
    return panels


def causes(report: Report) -> Panels:
    """A panel a trace, with one legend in the first of them."""
    names = {name for group in report.groups.values() for name, tokens in group.causes.items() if tokens > 0}
    order = [name for name in _CAUSES if name in names] + sorted(names.difference(_CAUSES))
    colours = {name: f"c{index % svg.COLOURS}" for index, name in enumerate(order)}
    legend = "".join(
        f'<li class="{colours[name]}"><svg width="12" height="12" aria-hidden="true">'
        f'<rect width="12" height="12" rx="2"/></svg><span>{escape(_words(name))}</span></li>'
        for name in order
    )
    panels = []
    for trace in report.traces:
        groups = [group for group in report.of_trace(trace) if sum(group.causes.values()) > 0]
        if groups:
            scale = scales.linear(sum(group.causes.values()) for group in groups)
            bars = [_stack(group, order, colours) for group in groups]
            drawn = svg.bar_rows(f"Tokens not cached on {trace}, by cause", bars, scale, _axis_tokens)
            panels.append((trace, f'<ul class="legend">{legend}</ul>{drawn}'))
    return panels


def _stack(group: Group, order: Sequence[str], colours: dict[str, str]) -> svg.Stack:
    total = sum(group.causes.values())
    parts = [
        (
            group.causes[name],
            colours[name],
            f"{group.variant}: {_words(name)} {group.causes[name]:,.0f} tokens, "
            f"{scales.percent(group.causes[name] / total)} of what was computed",
        )
        for name in order
        if group.causes.get(name)
    ]
    return svg.Stack(group.variant, _tokens(total), parts)


def _row(report: Report, group: Group, measure: str, form: svg.Format) -> svg.Row:
    estimate = group.measures[measure]
    hint = f"{group.variant}: {form(estimate.mean)}"
    if estimate.half_width is not None:
        ends = f"{form(max(0.0, estimate.low))} to {form(estimate.high)}"
        hint += f", 95 % confidence {ends}, {estimate.seeds} seeds"
    mark = svg.Mark(estimate.mean, max(0.0, estimate.low), estimate.high)
    colour = report.variants.index(group.variant)
    return svg.Row(group.variant, colour, form(estimate.mean), hint, [mark])


def _ends(estimates: Sequence[Estimate]) -> list[float]:
    return [end for one in estimates for end in (one.mean, max(one.low, one.mean / 2), one.high)]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _axis_times(value: float) -> str:
    return f"{scales.short(value)}x"


def _tokens(value: float) -> str:
    size, unit = _unit(value)
    return f"{scales.number(value / size)}{unit}"


def _axis_tokens(value: float) -> str:
    size, unit = _unit(value)
    return f"{scales.short(value / size)}{unit}"


def _unit(value: float) -> tuple[float, str]:
    return next(
        ((size, unit) for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= size), (1.0, "")
    )
