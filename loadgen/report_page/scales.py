"""Axes: where a value stands, which values are marked, and how numbers are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps low..high to 0..1, by logarithms if `log`. Both ends lie on what `ticks` marks, or beyond data."""

    low: float
    high: float
    log: bool
    ticks: Sequence[float]

    def at(self, value: float) -> float:
        """Return where a value stands, within 0..1."""
        if self.log:
            value = max(value, self.low)
            share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))


def linear(values: Iterable[float], most: float | None = None) -> Scale:
    """A scale from 0 to a round number above all values, or to `most`."""
    largest = max(values, default=0.0)
    if most is None:
        raw = (largest or 1.0) / 4
        power = 10.0 ** floor(log10(raw))
        step = power * next(step for step in _STEPS if power * step >= raw * 0.999999)
        most = step * ceil(largest / step - 1e-9) if largest else 1.0
    else:
        step = most / 4
    ticks = [step * number for number in range(int(most / step + 1e-6) + 1)]
    return Scale(0.0, most, False, ticks)


def logarithmic(values: Iterable[float]) -> Scale:
    """A scale that holds all positive values, marked at 1, 2 and 5 of each decade, or only at 1 of many."""
    positive = [value for value in values if value > 0]
    low, high = (min(positive), max(positive)) if positive else (0.5, 2.0)
    marks = [
        step * 10.0**power
        for power in range(floor(log10(low)) - 1, ceil(log10(high)) + 2)
        for step in (1, 2, 5)
    ]
    below = max(mark for mark in marks if mark <= low * 1.000001)
    above = min(mark for mark in marks if mark >= high * 0.999999 and mark > below)
    ticks = [mark for mark in marks if below <= mark <= above]
    if len(ticks) > 8:
        ticks = [mark for mark in ticks if abs(log10(mark) - round(log10(mark))) < 1e-9]
    return Scale(below, above, True, ticks)


def number(value: float, significant: int = 3) -> str:
    """Write a number with so many significant digits, without an exponent."""
    if value == 0:
        return "0"
    if value >= 1000:
        return f"{value:,.0f}"
    digits = max(0, significant - 1 - floor(log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}"


def short(value: float) -> str:
    """Write a round number as an axis does."""
    return f"{value:,.6g}" if value < 10_000 else f"{value:,.0f}"


def times(value: float) -> str:
    """Write a ratio, to the hundredth below ten, so that those near one compare."""
    return f"{value:.2f}x" if value < 10 else f"{number(value)}x"


def seconds(value: float) -> str:
    """Write a time in the unit that fits it."""
    return f"{number(value * 1000)} ms" if value < 1 else f"{number(value)} s"


def axis_seconds(value: float) -> str:
    """Write a round time as an axis does."""
    return f"{short(value * 1000)} ms" if value < 1 else f"{short(value)} s"


def percent(value: float) -> str:
    """Write a share."""
    return f"{value * 100:.1f} %"


def axis_percent(value: float) -> str:
    """Write a round share as an axis does."""
    return f"{value * 100:.4g} %"
