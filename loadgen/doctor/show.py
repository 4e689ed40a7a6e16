"""Shows a diagnosis: what was checked, a line a check; then what to mend, the worst first."""

from __future__ import annotations

from collections import defaultdict

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loadgen.doctor.examine import Diagnosis
from loadgen.doctor.finding import Finding, Severity, Verdict, counted

_STYLES = {Severity.WRONG: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def shown(diagnosis: Diagnosis) -> RenderableType:
    """Return what was checked and what was found."""
    looked = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    looked.add_column(no_wrap=True)
    looked.add_column()
    looked.add_column(style="dim")
    for check, verdict in diagnosis.verdicts:
        if verdict.looked:
            looked.add_row(_mark(verdict), Text(check.asks), Text(verdict.seen))
    parts: list[RenderableType] = [looked]
    over: dict[str, list[str]] = defaultdict(list)
    for check, verdict in diagnosis.verdicts:
        if not verdict.looked:
            over[verdict.seen].append(check.name)
    if over:
        told = "; ".join(f"{', '.join(names)}: {why}" for why, names in over.items())
        parts += [Text(""), Text(f"Not checked: {told}", style="dim")]
    for severity in Severity:
        for finding in diagnosis.findings:
            if finding.severity is severity:
                parts += [Text(""), _finding(finding)]
    return Group(*parts, Text(""), Text(_sum(diagnosis), style="bold"))


def _mark(verdict: Verdict) -> Text:
    worst = next(
        (one for one in Severity if any(finding.severity is one for finding in verdict.findings)), None
    )
    return Text(worst.value, style=_STYLES[worst]) if worst else Text("ok", style="green")


def _finding(finding: Finding) -> RenderableType:
    title = Text.assemble((f"{finding.severity.value}: ", _STYLES[finding.severity]), (finding.title, "bold"))
    lines = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column()
    for label, text in (("seen", finding.seen), ("costs", finding.costs), ("mend", finding.mend)):
        lines.add_row(label, Text(text))
    return Group(title, Padding(lines, (0, 0, 0, 2)))


def _sum(diagnosis: Diagnosis) -> str:
    counts = [sum(finding.severity is severity for finding in diagnosis.findings) for severity in Severity]
    if not any(counts):
        return f"{counted(diagnosis.looked, 'check')}, nothing wrong"
    found = [f"{counts[0]} wrong" if counts[0] else "nothing wrong"]
    found += [counted(counts[1], "warning")] if counts[1] else []
    found += [counted(counts[2], "note")] if counts[2] else []
    return f"{counted(diagnosis.looked, 'check')}: {', '.join(found)}"
