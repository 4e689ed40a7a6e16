"""Readings: the metrics that the dashboard shows, collected once, in the shape in which it shows them."""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import Any

from prometheus_client import CollectorRegistry

_FIGURES = {
    "kvring_requests_total": "requests",
    "kvring_prompt_tokens_total": "prompt_tokens",
    "kvring_expected_hit_tokens_total": "expected_tokens",
    "kvring_hit_tokens_total": "hit_tokens",
    "kvring_hit_unreported_total": "unreported",
}
_MISSES = "kvring_uncached_tokens_total"
# By model and turn, so that more replicas do not make it larger; and of streams alone, as the first byte
# of an answer that comes whole comes after its last token.
_TTFT = "kvring_turn_time_to_first_byte_seconds_bucket"
_INFO = "kvring_info"
_REDIS = "kvring_redis_up"
STARTED = "kvring_process_start_time_seconds"
_RELOADS, _CURRENT = "kvring_config_reloads_total", "kvring_config_current"
_IN_FLIGHT = "kvring_replica_in_flight_requests"
_GAUGES = ("kvring_in_flight_requests", "kvring_waiting_requests", _CURRENT, _REDIS, STARTED)


class Readings:
    """What the metrics say at one moment: sums by replica, and over all that ever were."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Collects from `registry` just what is shown."""
        self.introduction = {"version": "", "policy": "", "run": "", "config": ""}
        self._single: dict[str, float] = {}
        self._in_flight: dict[str, int] = {}
        self._reloads: dict[str, int] = {}
        self._figures: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._misses: dict[str, dict[str, int]] = defaultdict(dict)
        self._first_bytes: dict[float, int] = defaultdict(int)
        names = (*_FIGURES, _MISSES, _TTFT, _INFO, _RELOADS, _IN_FLIGHT, *_GAUGES)
        for metric in registry.restricted_registry(names).collect():
            for name, labels, value, *_ in metric.samples:
                self._take(name, labels, value)

    @property
    def redis_up(self) -> bool | None:
        """Whether Redis answers; None where none is used."""
        return bool(self._single[_REDIS]) if _REDIS in self._single else None

    @property
    def reloads(self) -> dict[str, Any]:
        """How often changed options were taken and refused, and whether the last ones were taken."""
        return {**self._reloads, "current": bool(self.one(_CURRENT))}

    def one(self, name: str) -> float:
        """Return a gauge without labels."""
        return self._single.get(name, 0.0)

    def in_flight(self, replica: str, own: int) -> int:
        """Return the leases on a replica, `own` ones where the metrics do not know it."""
        return self._in_flight.get(replica, own)

    def of(self, replica: str) -> dict[str, Any]:
        """Return a replica's counts, all 0 where it has served nothing."""
        counts = self._figures.get(replica, {})
        told = {figure: counts.get(figure, 0) for figure in _FIGURES.values()}
        return {**told, "uncached": self._misses.get(replica, {})}

    def totals(self) -> dict[str, Any]:
        """Return the sums over all replicas, those that left of late included.

        `first_bytes` counts streams by the bound in seconds below which they began, None being none.
        """
        told: dict[str, Any] = {
            figure: sum(counts.get(figure, 0) for counts in self._figures.values())
            for figure in _FIGURES.values()
        }
        uncached: dict[str, int] = defaultdict(int)
        for misses in self._misses.values():
            for cause, tokens in misses.items():
                uncached[cause] += tokens
        bounds = sorted(self._first_bytes.items())
        return {
            **told,
            "uncached": uncached,
            "first_bytes": [[None if bound == inf else bound, count] for bound, count in bounds],
        }

    def _take(self, name: str, labels: dict[str, str], value: float) -> None:
        if name == _MISSES:
            self._misses[labels["replica"]][labels["cause"]] = int(value)
        elif name in _FIGURES:
            # Requests are counted by how they ended.
            self._figures[labels["replica"]][_FIGURES[name]] += int(value)
        elif name == _IN_FLIGHT:
            self._in_flight[labels["replica"]] = int(value)
        elif name == _TTFT:
            self._first_bytes[float(labels["le"])] += int(value)
        elif name == _INFO:
            self.introduction = dict(labels)
        elif name == _RELOADS:
            self._reloads[labels["result"]] = int(value)
        else:
            self._single[name] = value
