"""Lines and tables show the same words with rich and without, and no text is taken for markup."""

from __future__ import annotations

import sys

import pytest

from loadgen.sheet import Column, Line, Part, Table, plain, show

PARTS: tuple[Part, ...] = (
    Line((("wrong: ", "bold red"), ("no [/dev/null] there", "bold"))),
    Table(
        (Column("replica"), Column("wait", right=True), Column("reason")),
        (("r0", "1,000 ms", "[bold]why[/bold]"), (Line.of("longer-name", "dim"), "9 ms", "")),
        title="the [first]",
        caption="and 3 more",
    ),
    Table((Column(whole=True), Column()), (("seen", "a"), ("costs", "b")), frame="none", indent=2),
    Table((Column("nothing"),), ()),
)


def test_plain_tables_stand_in_columns() -> None:
    line, table, facts, empty = (list(plain(part)) for part in PARTS)
    assert line == ["wrong: no [/dev/null] there"]
    assert table == [
        "the [first]",
        "replica          wait  reason",
        "r0           1,000 ms  [bold]why[/bold]",
        "longer-name      9 ms",
        "and 3 more",
    ]
    assert facts == ["  seen   a", "  costs  b"]
    assert empty == ["nothing"]


@pytest.mark.parametrize("absent", [False, True])
def test_both_show_the_same_words(
    absent: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if absent:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    show(PARTS)
    shown = capsys.readouterr().out
    assert ("━" in shown) is not absent
    for part in PARTS:
        cells = [str(part)] if isinstance(part, Line) else [str(cell) for row in part.rows for cell in row]
        assert all(cell in shown for cell in cells)
    assert "the [first]" in shown
    assert "and 3 more" in shown
