"""What commands show, lines and tables: drawn by rich where it is installed, as plain text elsewhere.

So a command works in a router's image too, which has no rich.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_GAP = "  "


@dataclass(frozen=True, slots=True)
class Line:
    """Text in pieces, each with its style as rich names it; plain text shows none."""

    pieces: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, text: str, style: str = "") -> Line:
        """Return a line of one style."""
        return cls(((text, style),))

    def __str__(self) -> str:
        return "".join(text for text, _ in self.pieces)


@dataclass(frozen=True, slots=True)
class Column:
    """One column. A `whole` one is never wrapped; numbers stand to the `right`."""

    heading: str = ""
    right: bool = False
    whole: bool = False
    style: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, one for each column. Without a single heading no headings are shown."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str | Line, ...], ...]
    title: str = ""
    caption: str = ""
    frame: Literal["box", "rule", "none"] = "box"
    indent: int = 0


Part = Line | Table


def show(parts: Iterable[Part]) -> None:
    """Print the parts to stdout."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        for part in parts:
            click.echo("\n".join(plain(part)))
        return
    console = Console(highlight=False)
    for part in parts:
        console.print(_drawn(part))


def plain(part: Part) -> Iterator[str]:
    """Yield the lines of plain text that a part is."""
    if isinstance(part, Line):
        yield str(part)
        return
    margin = " " * part.indent
    rows = [[str(cell) for cell in row] for row in part.rows]
    if any(column.heading for column in part.columns):
        rows.insert(0, [column.heading for column in part.columns])
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    if part.title:
        yield margin + part.title
    for row in rows:
        cells = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, part.columns, strict=True)
        ]
        yield (margin + _GAP.join(cells)).rstrip()
    if part.caption:
        yield margin + part.caption


def _drawn(part: Part) -> RenderableType:
    from rich import box
    from rich import table as drawn
    from rich.padding import Padding

    if isinstance(part, Line):
        return _text(part)
    frame = {"box": box.HEAVY_HEAD, "rule": box.SIMPLE, "none": None}[part.frame]
    table = drawn.Table(
        title=_text(part.title) if part.title else None,
        title_justify="left",
        caption=_text(part.caption) if part.caption else None,
        box=frame,
        show_header=any(column.heading for column in part.columns),
        padding=(0, 1, 0, 0) if frame is None else (0, 1),
    )
    for column in part.columns:
        table.add_column(
            _text(column.heading),
            justify="right" if column.right else "left",
            no_wrap=column.whole,
            style=column.style,
        )
    for row in part.rows:
        table.add_row(*map(_text, row))
    return Padding(table, (0, 0, 0, part.indent), expand=False) if part.indent else table


def _text(cell: str | Line) -> Text:
    from rich.text import Text

    return Text(cell) if isinstance(cell, str) else Text.assemble(*cell.pieces)
