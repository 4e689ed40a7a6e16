"""The baseline: what a gate's cases came to, as a JSON file that is kept with the code; and the verdict."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import orjson

_VERSION = 1
_MAX_BYTES = 16 * 1024 * 1024


class BaselineError(ValueError):
    """The baseline cannot be read, or is that of other cases; the message says so."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What all runs came to: a hit ratio for each run, and for each request the median over the runs.

    `unreported` answers said nothing of cached tokens, while others did; they count as zero.
    """

    fingerprint: str
    cold: str
    run_ratios: tuple[float, ...]
    request_ratios: tuple[float, ...]
    prompt_tokens: int
    unreported: int

    @property
    def median(self) -> float:
        """The median run's hit ratio."""
        return median(self.run_ratios)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        return {
            "version": _VERSION,
            "cases": self.fingerprint,
            "cold": self.cold,
            "median": round(self.median, 6),
            "runs": [round(ratio, 6) for ratio in self.run_ratios],
            "requests": [round(ratio, 6) for ratio in self.request_ratios],
            "prompt_tokens": self.prompt_tokens,
            "unreported": self.unreported,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a measurement stands to its baseline. `dropped` holds (request, before, now), the worst first."""

    baseline: float
    measured: float
    tolerance: float
    dropped: tuple[tuple[int, float, float], ...]

    @property
    def holds(self) -> bool:
        """Whether the median is at most the tolerance below the baseline's."""
        # A hair of slack: ratios are rounded when written.
        return self.measured >= self.baseline - self.tolerance - 1e-6


def write_baseline(path: Path, measured: Measured) -> None:
    """Write a baseline, whole or not at all; OSError if it cannot be written."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(orjson.dumps(measured.to_json(), option=orjson.OPT_INDENT_2) + b"\n")
    beside.replace(path)


def judge(path: Path, measured: Measured, tolerance: float) -> Verdict:
    """Compare with a baseline file; BaselineError if it is none, or that of other cases."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BaselineError(f"{path} is too large for a baseline")
        known = orjson.loads(path.read_bytes())
        version, cases, cold = known["version"], known["cases"], known["cold"]
        before, requests = float(known["median"]), [float(ratio) for ratio in known["requests"]]
    except OSError as error:
        raise BaselineError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise BaselineError(f"{path} is no baseline: {error!r}") from error
    if version != _VERSION:
        raise BaselineError(f"{path} has version {version}, not {_VERSION}; write it anew")
    if (cases, cold) != (measured.fingerprint, measured.cold):
        raise BaselineError(f"{path} is the baseline of other cases; write it anew with --write-baseline")
    pairs = enumerate(zip(requests, measured.request_ratios, strict=False))
    dropped = [(index, was, now) for index, (was, now) in pairs if now < was - tolerance]
    dropped.sort(key=lambda drop: drop[2] - drop[1])
    return Verdict(before, measured.median, tolerance, tuple(dropped))
