"""Shows how far a run is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadgen.drive import OnTurn, Turn

_LINE_SECONDS = 5.0


class _Count:
    """What the progress line says beside the number."""

    def __init__(self) -> None:
        self.done = 0
        self._errors = 0
        self._prompt = 0
        self._cached = 0

    def take(self, turn: Turn) -> None:
        self.done += 1
        self._errors += turn.answer.error is not None
        self._prompt += turn.answer.prompt_tokens or 0
        self._cached += turn.answer.cached_tokens or 0

    def words(self) -> str:
        hit = f"hit {self._cached / self._prompt:.0%}" if self._prompt else ""
        return hit + (f"  errors {self._errors}" if self._errors else "")


@contextmanager
def turn_progress(title: str, total: int, console: Console) -> Iterator[OnTurn]:
    """Give a callback for `drive`; `total` is the number of turns to come."""
    count = _Count()
    if not console.is_terminal:
        yield _lines(title, total, console, count)
        return
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total, words="")

        def on_turn(turn: Turn) -> None:
            count.take(turn)
            progress.update(task, completed=count.done, words=count.words())

        yield on_turn


def _lines(title: str, total: int, console: Console, count: _Count) -> OnTurn:
    due = monotonic() + _LINE_SECONDS

    def on_turn(turn: Turn) -> None:
        nonlocal due
        count.take(turn)
        if monotonic() >= due or count.done == total:
            due = monotonic() + _LINE_SECONDS
            console.print(f"{title}: {count.done}/{total}  {count.words()}", highlight=False)

    return on_turn


@contextmanager
def count_progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Give a callback that shows what is being done, how much of it is, and of how much."""
    if not console.is_terminal:
        said = ""

        def on_count(what: str, done: int, of: int) -> None:
            nonlocal said
            if what != said:
                said = what
                console.print(what, highlight=False)

        yield on_count
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        task = progress.add_task("", total=None)
        yield lambda what, done, of: progress.update(task, description=what, completed=done, total=of)
