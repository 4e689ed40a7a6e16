"""Inline SVG, drawn by hand: rows of marks with whiskers, stacked bars, and curves. All text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from loadgen.report_page.scales import Scale

_WIDTH = 560
_LETTER = 7.7
_ROW = 26
_TOP = 8
_AXIS = 30
_VALUES = 96
_LONGEST_LABEL = 34
_CURVES_HEIGHT = 250
DASHES = ("", "7 4", "2 4", "9 3 2 3")
COLOURS = 8

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark of a row: a dot at `value`, with a whisker from `low` to `high` where they differ."""

    value: float
    low: float
    high: float
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A labelled row. `value` is written at its end, `hint` shown on hovering, `colour` an index."""

    label: str
    colour: int
    value: str
    hint: str
    marks: Sequence[Mark]


@dataclass(frozen=True, slots=True)
class Stack:
    """A labelled bar of parts, each its length, colour class and hint."""

    label: str
    value: str
    parts: Sequence[tuple[float, str, str]]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through points, with a hint; `number` gives its colour and dashes."""

    number: int
    hint: str
    points: Sequence[tuple[float, float]]


def dot_rows(title: str, rows: Sequence[Row], scale: Scale, form: Format, line: float | None = None) -> str:
    """Draw rows of dots over one scale; `line` marks a value of reference."""
    left = _margin([row.label for row in rows])
    frame = _Frame(left, _WIDTH - _VALUES, scale)
    height = _TOP + _ROW * len(rows)
    parts = [_grid(frame, height, form)]
    if line is not None:
        x = frame.x(line)
        parts.append(f'<line class="reference" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height}"/>')
    for index, row in enumerate(rows):
        y = _TOP + _ROW * (index + 0.5)
        drawn = [_label(row.label, left, y), _value(row.value, y)]
        drawn += [_whisker(frame, mark, y) for mark in row.marks]
        drawn += [_dot(frame, mark, y) for mark in row.marks]
        parts.append(
            f'<g class="row c{row.colour % COLOURS}"><title>{escape(row.hint)}</title>'
            f'<rect class="hit" x="0" y="{y - _ROW / 2:.1f}" width="{_WIDTH}" height="{_ROW}"/>'
            f"{''.join(drawn)}</g>"
        )
    return _svg(title, height + _AXIS, parts)


def bar_rows(title: str, bars: Sequence[Stack], scale: Scale, form: Format) -> str:
    """Draw horizontal bars, each of one or more parts."""
    left = _margin([bar.label for bar in bars])
    frame = _Frame(left, _WIDTH - _VALUES, scale)
    height = _TOP + _ROW * len(bars)
    parts = [_grid(frame, height, form)]
    for index, bar in enumerate(bars):
        y = _TOP + _ROW * (index + 0.5)
        parts += [_label(bar.label, left, y), _value(bar.value, y)]
        begin = 0.0
        for length, colour, hint in bar.parts:
            x, end = frame.x(begin), frame.x(begin + length)
            begin += length
            parts.append(
                f'<g class="{escape(colour)}"><title>{escape(hint)}</title>'
                f'<rect class="bar" x="{x:.1f}" y="{y - 8:.1f}" width="{end - x:.1f}" height="16"/></g>'
            )
    return _svg(title, height + _AXIS, parts)


def curves(
    title: str, lines: Sequence[Curve], across: Scale, form: Format, up: Scale, up_form: Format
) -> str:
    """Draw curves over two scales."""
    left, right, height = 52.0, _WIDTH - 16.0, float(_CURVES_HEIGHT)
    frame = _Frame(left, right, across)
    parts = [_grid(frame, height, form)]
    for tick in up.ticks:
        y = height - (height - _TOP) * up.at(tick)
        parts.append(
            f'<line class="grid" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">'
            f"{escape(up_form(tick))}</text>"
        )
    for line in lines:
        points = " ".join(
            f"{frame.x(x):.1f},{height - (height - _TOP) * up.at(y):.1f}" for x, y in line.points
        )
        dashes = DASHES[line.number // COLOURS % len(DASHES)]
        parts.append(
            f'<g class="c{line.number % COLOURS}"><title>{escape(line.hint)}</title>'
            f'<polyline class="hit" points="{points}"/>'
            f'<polyline class="curve" stroke-dasharray="{dashes}" points="{points}"/></g>'
        )
    return _svg(title, height + _AXIS, parts)


@dataclass(frozen=True, slots=True)
class _Frame:
    left: float
    right: float
    scale: Scale

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * self.scale.at(value)


def _margin(labels: Sequence[str]) -> float:
    longest = max((min(len(label), _LONGEST_LABEL) for label in labels), default=0)
    return 14 + _LETTER * longest


def _grid(frame: _Frame, height: float, form: Format) -> str:
    parts = []
    for tick in frame.scale.ticks:
        x = frame.x(tick)
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height:.1f}"/>'
            f'<text class="tick" x="{x:.1f}" y="{height + 18:.1f}" text-anchor="middle">'
            f"{escape(form(tick))}</text>"
        )
    return "".join(parts)


def _label(text: str, left: float, y: float) -> str:
    shown = text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"
    return f'<text class="label" x="{left - 10:.1f}" y="{y + 4:.1f}" text-anchor="end">{escape(shown)}</text>'


def _value(text: str, y: float) -> str:
    return f'<text class="value" x="{_WIDTH - 4}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'


def _whisker(frame: _Frame, mark: Mark, y: float) -> str:
    if mark.low >= mark.high:
        return ""
    low, high = frame.x(mark.low), frame.x(mark.high)
    return f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _dot(frame: _Frame, mark: Mark, y: float) -> str:
    kind = "dot hollow" if mark.hollow else "dot"
    return f'<circle class="{kind}" cx="{frame.x(mark.value):.1f}" cy="{y:.1f}" r="4.5"/>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
