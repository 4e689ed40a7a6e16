"""What a check comes to: a verdict, with a finding for each thing that is not as it should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """WRONG: it costs cache hits, requests or safety now. WARNING: it may. NOTE: good to know."""

    WRONG = "wrong"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to mend: the numbers, why it matters, and the exact option or flag."""

    severity: Severity
    title: str
    seen: str
    costs: str
    mend: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check came to. `seen` says what was looked at, or why nothing was."""

    seen: str
    findings: tuple[Finding, ...] = ()
    looked: bool = True


def passed_over(why: str) -> Verdict:
    """Return the verdict of a check that had nothing to look at."""
    return Verdict(why, looked=False)


def wrong(title: str, seen: str, costs: str, mend: str) -> Finding:
    """Return a finding of what costs something now."""
    return Finding(Severity.WRONG, title, seen, costs, mend)


def warning(title: str, seen: str, costs: str, mend: str) -> Finding:
    """Return a finding of what may cost something."""
    return Finding(Severity.WARNING, title, seen, costs, mend)


def note(title: str, seen: str, costs: str, mend: str) -> Finding:
    """Return a finding of what is good to know."""
    return Finding(Severity.NOTE, title, seen, costs, mend)


def counted(count: int, what: str) -> str:
    """Return `3 replicas`, or `1 replica`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def named(names: Sequence[str], most: int = 4) -> str:
    """Return a few of `names`, and how many more there are."""
    shown = sorted(names)
    if len(shown) <= most:
        return ", ".join(shown)
    return f"{', '.join(shown[:most])} and {len(shown) - most} more"
