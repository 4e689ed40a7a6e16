"""Runs tasks side by side, a forked process each: nothing is pickled on the way in, memory is shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def side_by_side(
    work: Callable[[Task], Result], tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[int, Result]]:
    """Yield each task's number and result as it is done, `jobs` at a time.

    What a task raises is raised here, and the others are stopped; RuntimeError if its process dies.
    """
    context = get_context("fork")
    running: dict[Connection, int] = {}
    waiting = list(enumerate(tasks))[::-1]
    processes = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number, task = waiting.pop()
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=_do, args=(work, task, there), daemon=True)
                process.start()
                there.close()
                processes.append(process)
                running[here] = number
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                number = running.pop(ready)
                try:
                    good, result = ready.recv()
                except EOFError as error:
                    raise RuntimeError("a process of the simulation died") from error
                finally:
                    ready.close()
                if not good:
                    raise result
                yield number, result
    finally:
        for process in processes:
            process.kill()
            process.join()


def _do(work: Callable[[Task], Result], task: Task, to: Connection) -> None:
    try:
        answer: tuple[bool, object] = (True, work(task))
    except Exception as error:
        answer = (False, error)
    to.send(answer)
    to.close()
