"""Shows a diagnosis: what was checked, a line a check; then what to mend, the worst first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from loadgen.doctor.examine import Diagnosis
from loadgen.doctor.finding import Finding, Severity, Verdict, counted
from loadgen.sheet import Column, Line, Part, Table

_STYLES = {Severity.WRONG: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def shown(diagnosis: Diagnosis) -> Iterator[Part]:
    """Show what was checked and what was found."""
    looked = tuple(
        (_mark(verdict), check.asks, verdict.seen) for check, verdict in diagnosis.verdicts if verdict.looked
    )
    if looked:
        yield Table((Column(whole=True), Column(), Column(style="dim")), looked, frame="none")
    over: dict[str, list[str]] = defaultdict(list)
    for check, verdict in diagnosis.verdicts:
        if not verdict.looked:
            over[verdict.seen].append(check.name)
    if over:
        told = "; ".join(f"{', '.join(names)}: {why}" for why, names in over.items())
        yield Line.of("")
        yield Line.of(f"Not checked: {told}", "dim")
    for severity in Severity:
        for finding in diagnosis.findings:
            if finding.severity is severity:
                yield Line.of("")
                yield from _finding(finding)
    yield Line.of("")
    yield Line.of(_sum(diagnosis), "bold")


def _mark(verdict: Verdict) -> Line:
    worst = next(
        (one for one in Severity if any(finding.severity is one for finding in verdict.findings)), None
    )
    return Line.of(worst.value, _STYLES[worst]) if worst else Line.of("ok", "green")


def _finding(finding: Finding) -> Iterator[Part]:
    severity = finding.severity
    yield Line(((f"{severity.value}: ", _STYLES[severity]), (finding.title, "bold")))
    yield Table(
        (Column(style="dim", whole=True), Column()),
        (("seen", finding.seen), ("costs", finding.costs), ("mend", finding.mend)),
        frame="none",
        indent=2,
    )


def _sum(diagnosis: Diagnosis) -> str:
    counts = [sum(finding.severity is severity for finding in diagnosis.findings) for severity in Severity]
    if not any(counts):
        return f"{counted(diagnosis.looked, 'check')}, nothing wrong"
    found = [f"{counts[0]} wrong" if counts[0] else "nothing wrong"]
    found += [counted(counts[1], "warning")] if counts[1] else []
    found += [counted(counts[2], "note")] if counts[2] else []
    return f"{counted(diagnosis.looked, 'check')}: {', '.join(found)}"
