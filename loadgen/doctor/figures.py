"""Figures: the metrics of a router, as sums over labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isfinite

from prometheus_client.parser import text_string_to_metric_families


class Figures:
    """All samples of one page that are finite."""

    def __init__(self, text: str) -> None:
        """ValueError for what is no page of metrics."""
        self._samples: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
        try:
            for family in text_string_to_metric_families(text):
                for name, labels, value, *_ in family.samples:
                    if isfinite(value):
                        self._samples[name].append((labels, value))
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"not a page of metrics: {error!r}") from error

    def has(self, name: str) -> bool:
        """Return whether there is any sample of this name."""
        return bool(self._samples.get(name))

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples that have these labels, 0 where there are none."""
        return sum(
            value
            for told, value in self._samples.get(name, ())
            if all(told.get(label) == wanted for label, wanted in labels.items())
        )

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Return those sums for each value of `label`."""
        sums: dict[str, float] = defaultdict(float)
        for told, value in self._samples.get(name, ()):
            if label in told and all(told.get(other) == wanted for other, wanted in labels.items()):
                sums[told[label]] += value
        return dict(sums)

    def over(self, name: str, label: str, values: Sequence[str]) -> float:
        """Return the sum of the samples whose `label` is one of `values`."""
        return sum(amount for value, amount in self.by(name, label).items() if value in values)
