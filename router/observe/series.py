"""Series: counters, gauges and histograms as plain numbers, which prometheus_client shows when scraped.

Theirs take a lock and several calls for each number: a dozen a request. These take none, since all that count
run in one thread, that of the event loop: no tokenizer's thread, no watch of layouts. What other threads tell
is read from where they keep it, when scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Generic, Protocol, TypeVar

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

# What a family has one series for: the values of its labels, in the order of their names.
Labels = tuple[str, ...]
# A sample's suffix to the family's name, its label beside the family's, and its value.
Sample = tuple[str, Mapping[str, str], float]

_NO_LABEL: Mapping[str, str] = {}


class Series(Protocol):
    """One line of a chart, or a histogram's few."""

    def samples(self) -> Iterable[Sample]:
        """Yield what is shown."""


class Counter:
    """A sum that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add `amount`; ValueError below 0."""
        if amount < 0:
            raise ValueError("counters only grow")
        self.value += amount

    def samples(self) -> Iterable[Sample]:
        """Yield the sum."""
        yield "_total", _NO_LABEL, self.value


class Gauge:
    """A value that comes and goes."""

    __slots__ = ("_read", "_value")

    def __init__(self) -> None:
        self._value = 0.0
        self._read: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        """Show `value` from now on."""
        self._value, self._read = float(value), None

    def set_function(self, read: Callable[[], float]) -> None:
        """Show what `read` returns whenever it is asked for."""
        self._read = read

    def samples(self) -> Iterable[Sample]:
        """Yield the value."""
        yield "", _NO_LABEL, self._value if self._read is None else float(self._read())


class Histogram:
    """How often values were at most each bound. Bounds ascend from above 0; the last is infinite."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * len(bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> Iterable[Sample]:
        """Yield each bound's count, that of all, and their sum."""
        count = 0
        for bound, count in zip(self._bounds, accumulate(self._counts), strict=True):
            yield "_bucket", {"le": _text(bound)}, float(count)
        yield "_count", _NO_LABEL, float(count)
        yield "_sum", _NO_LABEL, self._sum


Some = TypeVar("Some", bound=Series)


class Family(Collector, Generic[Some]):
    """All series of one name. One that was dropped counts from zero when it is asked for again.

    So nobody keeps a series of a family with labels: `of[values]` finds it in a tenth of a microsecond.
    """

    def __init__(self, kind: str, name: str, text: str, labels: Labels, new: Callable[[], Some]) -> None:
        """`kind` is as prometheus_client calls it; without labels there is one series, from the start on."""
        self._kind, self._name, self._text, self._labels = kind, name, text, labels
        self.of: dict[Labels, Some] = _Table(len(labels), new)
        if not labels:
            self.only()

    def only(self) -> Some:
        """Return the series of a family without labels."""
        return self.of[()]

    def labels(self, *values: object) -> Some:
        """Return the series of these values, in the order of the labels' names."""
        return self.of[tuple(map(str, values))]

    def remove_by_labels(self, values: Mapping[str, str]) -> None:
        """Drop the series that have all these values."""
        wanted = [(self._labels.index(name), value) for name, value in values.items()]
        for labels in list(self.of):
            if all(labels[place] == value for place, value in wanted):
                del self.of[labels]

    def clear(self) -> None:
        """Drop all series."""
        self.of.clear()

    def describe(self) -> Iterator[Metric]:
        """Yield the family without its series, so that it can be read by name."""
        yield Metric(self._name, self._text, self._kind)

    def collect(self) -> Iterator[Metric]:
        """Yield the family as of now."""
        metric = Metric(self._name, self._text, self._kind)
        for values, series in self.of.items():
            labels = dict(zip(self._labels, values, strict=True))
            for suffix, label, value in series.samples():
                metric.add_sample(self._name + suffix, {**labels, **label}, value)
        yield metric


def counters(name: str, text: str, labels: Labels = ()) -> Family[Counter]:
    """Return a family of counters; their `name` has no `_total`."""
    return Family("counter", name, text, labels, Counter)


def gauges(name: str, text: str, labels: Labels = ()) -> Family[Gauge]:
    """Return a family of gauges."""
    return Family("gauge", name, text, labels, Gauge)


def histograms(name: str, text: str, bounds: Sequence[float], labels: Labels = ()) -> Family[Histogram]:
    """Return a family of histograms with these bounds, which ascend from above 0, and an infinite one."""
    all_bounds = (*map(float, bounds), inf)
    return Family("histogram", name, text, labels, lambda: Histogram(all_bounds))


def _text(bound: float) -> str:
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]


class _Table(dict[Labels, Some]):
    """Series by the values of their labels, made when first asked for."""

    def __init__(self, label_count: int, new: Callable[[], Some]) -> None:
        super().__init__()
        self._label_count = label_count
        self._new = new

    def __missing__(self, values: Labels) -> Some:
        if len(values) != self._label_count:
            raise ValueError(f"{len(values)} labels where there are {self._label_count}")
        made = self[values] = self._new()
        return made
