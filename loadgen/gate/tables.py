"""Shows what a gate measured, and what fell."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from loadgen.gate.baseline import Measured, Verdict

_SHOWN_DROPS = 5


def measured_table(measured: Measured, verdict: Verdict | None) -> Group:
    """Return the runs, the median, and the requests that fell most below their baseline."""
    table = Table(show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("requests a run", f"{len(measured.request_ratios):,}")
    table.add_row("prompt tokens a run", f"{measured.prompt_tokens:,}")
    for run, ratio in enumerate(measured.run_ratios, 1):
        table.add_row(f"run {run}", f"{ratio:.1%}")
    table.add_row("median hit ratio", f"{measured.median:.1%}")
    notes: list[Text] = []
    if verdict is not None:
        table.add_row("baseline", f"{verdict.baseline:.1%}")
        table.add_row("tolerance", f"{verdict.tolerance:.1%}")
        table.add_row("verdict", "holds" if verdict.holds else "below")
        if not verdict.holds:
            notes += [
                Text(f"request {index + 1} fell from {was:.1%} to {now:.1%}")
                for index, was, now in verdict.dropped[:_SHOWN_DROPS]
            ]
        elif verdict.measured > verdict.baseline + verdict.tolerance:
            notes.append(Text("The ratio has risen: --write-baseline would hold it there."))
    if measured.unreported:
        notes.append(Text(f"{measured.unreported} answers told no cached tokens, and count as zero."))
    return Group(table, *notes)
