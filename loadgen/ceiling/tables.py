"""Shows bounds and layouts as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.ceiling.bound import Bound
from loadgen.ceiling.sessions import SessionBreaks
from router.observe.layout.cause import RULES, WORDS
from router.observe.layout.report import LayoutReport, Row

_SHOWN_ROWS = 24


def bound_tables(name: str, bound: Bound) -> Group:
    """Return what caches could hold, by size and by the number of replicas."""
    facts = Table(title=name, title_justify="left", show_header=False)
    facts.add_column("")
    facts.add_column("", justify="right")
    for label, figure in (
        ("requests", f"{bound.requests:,}"),
        ("prompt tokens", f"{bound.prompt_tokens:,}"),
        ("different blocks", f"{bound.distinct_blocks:,} of {bound.block_tokens} tokens"),
        ("hit bound, one cache without limit", f"{bound.hit_ratio:.1%}"),
    ):
        facts.add_row(label, figure)
    total = max(1, bound.prompt_tokens)
    sizes = Table(title="by size of one LRU cache", title_justify="left")
    for column in ("blocks", "tokens", "hit bound"):
        sizes.add_column(column, justify="right")
    for blocks, hit in bound.by_blocks:
        sizes.add_row(f"{blocks:,}", f"{blocks * bound.block_tokens:,}", f"{hit / total:.1%}")
    replicas = Table(title="by replicas, caches without limit", title_justify="left")
    for column in ("replicas", "each request at random", "each where its prefix is"):
        replicas.add_column(column, justify="right")
    for count, hit_at_random in bound.by_replicas:
        replicas.add_row(f"{count}", f"{hit_at_random / total:.1%}", f"{bound.hit_ratio:.1%}")
    shown: list[RenderableType] = [facts, sizes, replicas]
    if bound.forgotten_blocks:
        shown.append(
            Text(f"{bound.forgotten_blocks:,} blocks were forgotten: the bounds count none of them.")
        )
    return Group(*shown)


def break_table(breaks: SessionBreaks) -> Table:
    """Return how sessions go on."""
    table = Table(title=f"turns of {breaks.sessions:,} sessions", title_justify="left")
    for column in ("", "turns", "tokens left behind"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("append to the last prompt", f"{breaks.appended:,}", "0")
    table.add_row("one clean break", f"{breaks.clean_breaks:,}", f"{breaks.clean_left_tokens:,}")
    table.add_row(
        "a break soon after another", f"{breaks.repeated_breaks:,}", f"{breaks.repeated_left_tokens:,}"
    )
    return table


def layout_tables(report: LayoutReport) -> Group:
    """Return what the layout costs, by cause and place, and the rule that mends each."""
    total = max(1.0, report.prompt_tokens)
    title = "tokens that the layout of the prompts costs; at: the character where they part"
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for column in ("layout", "where"):
        table.add_column(column, no_wrap=True)
    table.add_column("at")
    table.add_column("cause")
    for column in ("requests", "lost", "each", "of all"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in report.rows[:_SHOWN_ROWS]:
        table.add_row(*_cells(row), style="dim" if row.accepted else None)
    if rest := report.rows[_SHOWN_ROWS:]:
        lost = sum(row.lost_tokens for row in rest)
        requests = sum(row.requests for row in rest)
        table.add_row(
            "", f"{len(rest)} more", "", "", f"{requests:,.0f}", f"{lost:,.0f}", "", f"{lost / total:.1%}"
        )
    sums = Table(show_header=False)
    sums.add_column("")
    sums.add_column("", justify="right")
    sums.add_column("", justify="right")
    for label, tokens in (
        ("found by a cache without limit", report.hit_tokens),
        ("lost by the layout", report.lost_tokens),
        ("new text", report.fresh_tokens),
    ):
        sums.add_row(label, f"{tokens:,.0f}", f"{tokens / total:.1%}")
    return Group(*((table,) if report.rows else ()), sums, *_rules(report.rows))


def _cells(row: Row) -> tuple[str, ...]:
    where = f"{row.where} {row.role}" if row.kind == "messages" else row.where
    often = "" if row.character_ratio > 0.995 else f" in {row.character_ratio:.0%}"
    return (
        "other" if row.layout < 0 else str(row.layout),
        where,
        f"{row.character:,}{often}",
        row.cause.replace("_", " "),
        f"{row.requests:,.0f}",
        f"{row.lost_tokens:,.0f}",
        f"{row.lost_tokens / max(1.0, row.requests):,.0f}",
        f"{row.lost_ratio:.1%}",
    )


def _rules(rows: tuple[Row, ...]) -> Iterator[Text]:
    for cause in dict.fromkeys(row.cause for row in rows):
        yield Text(f"{cause.replace('_', ' ')}: {WORDS[cause]}. {RULES[cause]}")
    for row in rows:
        for before, now in row.texts:
            yield Text(f"{row.where} at {row.character}: {before!r} -> {now!r}")
