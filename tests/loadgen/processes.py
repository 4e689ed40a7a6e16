"""Looks at processes from outside: who descends from whom, and whether they have gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path


def _stat(pid: int) -> tuple[str, int] | None:
    """Return a process's state and its parent, or None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[1])


def children_of(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if (stat := _stat(pid)) is not None and stat[1] == parent]


async def gone(pids: Iterable[int], timeout_seconds: float = 10.0) -> bool:
    """Wait until none of the processes runs; False if one still does."""
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    left = list(pids)
    while left and asyncio.get_running_loop().time() < deadline:
        left = [pid for pid in left if (stat := _stat(pid)) is not None and stat[0] != "Z"]
        await asyncio.sleep(0.05)
    return not left
