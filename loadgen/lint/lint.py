"""Lints a request log, or the traffic that a live router has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.ceiling.bound import BoundMeter
from loadgen.ceiling.logs import measure_log
from loadgen.ceiling.prompts import PromptNamer
from loadgen.explain import ExplainError, layout_report
from loadgen.traces.request_log import read_requests
from router.observe.layout.cause import Cause
from router.observe.layout.report import LayoutReport


class LintError(ValueError):
    """The options cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class LintResult:
    """What layouts cost. `ignored` causes are told, but are no fault; `counts` are of what was left out."""

    report: LayoutReport
    ignored: frozenset[Cause]
    counts: Mapping[str, float]

    @property
    def fault_ratio(self) -> float:
        """Share of all prompt tokens that faults of the layout cost."""
        return sum(
            row.lost_ratio for row in self.report.rows if not row.accepted and row.cause not in self.ignored
        )

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {
            "fault_ratio": round(self.fault_ratio, 6),
            "ignored": sorted(cause.value for cause in self.ignored),
            **self.counts,
            **self.report.to_json(),
        }


def lint_log(
    path: Path,
    ignore: Sequence[str] = (),
    block_tokens: int = 16,
    tokenizer_directory: Path | None = None,
    show_text: bool = False,
) -> LintResult:
    """Lint a log; LintError for a cause that does not exist, TraceError for a log that cannot be read."""
    ignored = _causes(ignore)
    namer = PromptNamer(block_tokens, tokenizer_directory)
    # Of the bound, only what a cache without limit holds is wanted here.
    meter = BoundMeter(block_tokens, sizes_blocks=(1,), replicas=(1,))
    # Texts are kept either way, since they give exact places; they are told only where asked for.
    measure = measure_log(read_requests(path), namer, meter, keep_text=True)
    report = measure.layout
    if not show_text:
        report = replace(report, rows=tuple(replace(row, texts=()) for row in report.rows))
    counts = {"unread_requests": measure.unread, "named_by_bytes": measure.by_bytes}
    return LintResult(report, ignored, counts)


def lint_router(url: str, ignore: Sequence[str] = (), api_key: str | None = None) -> LintResult:
    """Lint what a router at `url` has seen since its start; LintError where it does not tell, or as above."""
    ignored = _causes(ignore)
    try:
        told = layout_report(url.rstrip("/"), api_key)
        counts = {"sample_share": float(told["sample_share"]), "skipped_requests": int(told["skipped"])}
        return LintResult(LayoutReport.from_json(told), ignored, counts)
    except ExplainError as error:
        raise LintError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LintError(f"{url} tells of layouts in a form that is not known here: {error}") from error


def _causes(names: Sequence[str]) -> frozenset[Cause]:
    try:
        return frozenset(Cause(name) for name in names)
    except ValueError as error:
        raise LintError(f"{error}; causes are {', '.join(Cause)}") from error
