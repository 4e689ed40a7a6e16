"""Shows bounds and layouts as tables."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.ceiling.bound import Bound
from loadgen.ceiling.sessions import SessionBreaks
from loadgen.sheet import Column, Line, Part, Table
from router.observe.layout.cause import RULES, WORDS
from router.observe.layout.report import LayoutReport, Row

_SHOWN_ROWS = 24
_LEFT = Column()
_RIGHT = Column(right=True)


def bound_tables(name: str, bound: Bound) -> Iterator[Part]:
    """Show what caches could hold, by size and by the number of replicas."""
    yield Table(
        (_LEFT, _RIGHT),
        (
            ("requests", f"{bound.requests:,}"),
            ("prompt tokens", f"{bound.prompt_tokens:,}"),
            ("different blocks", f"{bound.distinct_blocks:,} of {bound.block_tokens} tokens"),
            ("hit bound, one cache without limit", f"{bound.hit_ratio:.1%}"),
        ),
        title=name,
    )
    total = max(1, bound.prompt_tokens)
    yield Table(
        tuple(Column(heading, right=True) for heading in ("blocks", "tokens", "hit bound")),
        tuple(
            (f"{blocks:,}", f"{blocks * bound.block_tokens:,}", f"{hit / total:.1%}")
            for blocks, hit in bound.by_blocks
        ),
        title="by size of one LRU cache",
    )
    headings = ("replicas", "each request at random", "each where its prefix is")
    yield Table(
        tuple(Column(heading, right=True) for heading in headings),
        tuple(
            (f"{count}", f"{hit_at_random / total:.1%}", f"{bound.hit_ratio:.1%}")
            for count, hit_at_random in bound.by_replicas
        ),
        title="by replicas, caches without limit",
    )
    if bound.forgotten_blocks:
        yield Line.of(f"{bound.forgotten_blocks:,} blocks were forgotten: the bounds count none of them.")


def break_table(breaks: SessionBreaks) -> Table:
    """Show how sessions go on."""
    return Table(
        (_LEFT, Column("turns", right=True), Column("tokens left behind", right=True)),
        (
            ("append to the last prompt", f"{breaks.appended:,}", "0"),
            ("one clean break", f"{breaks.clean_breaks:,}", f"{breaks.clean_left_tokens:,}"),
            ("a break soon after another", f"{breaks.repeated_breaks:,}", f"{breaks.repeated_left_tokens:,}"),
        ),
        title=f"turns of {breaks.sessions:,} sessions",
    )


def layout_tables(report: LayoutReport) -> Iterator[Part]:
    """Show what the layout costs, by cause and place, and the rule that mends each."""
    if report.rows:
        yield _places(report)
    total = max(1.0, report.prompt_tokens)
    yield Table(
        (_LEFT, _RIGHT, _RIGHT),
        tuple(
            (label, f"{tokens:,.0f}", f"{tokens / total:.1%}")
            for label, tokens in (
                ("found by a cache without limit", report.hit_tokens),
                ("lost by the layout", report.lost_tokens),
                ("new text", report.fresh_tokens),
            )
        ),
    )
    yield from _rules(report.rows)


def _places(report: LayoutReport) -> Table:
    rows: list[tuple[str | Line, ...]] = [
        tuple(Line.of(cell, "dim") if row.accepted else cell for cell in _cells(row))
        for row in report.rows[:_SHOWN_ROWS]
    ]
    if rest := report.rows[_SHOWN_ROWS:]:
        lost = sum(row.lost_tokens for row in rest)
        requests = sum(row.requests for row in rest)
        share = lost / max(1.0, report.prompt_tokens)
        rows.append(("", f"{len(rest)} more", "", "", f"{requests:,.0f}", f"{lost:,.0f}", "", f"{share:.1%}"))
    return Table(
        (
            *(Column(heading, whole=True) for heading in ("layout", "where")),
            *(Column(heading) for heading in ("at", "cause")),
            *(Column(heading, right=True, whole=True) for heading in ("requests", "lost", "each", "of all")),
        ),
        tuple(rows),
        title="tokens that the layout of the prompts costs; at: the character where they part",
        frame="rule",
    )


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


def _rules(rows: tuple[Row, ...]) -> Iterator[Line]:
    for cause in dict.fromkeys(row.cause for row in rows):
        yield Line.of(f"{cause.replace('_', ' ')}: {WORDS[cause]}. {RULES[cause]}")
    for row in rows:
        for before, now in row.texts:
            yield Line.of(f"{row.where} at {row.character}: {before!r} -> {now!r}")
