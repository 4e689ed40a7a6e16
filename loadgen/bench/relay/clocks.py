"""CPU time and memory of other processes, as Linux tells them."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

# The scheduler's clock of a whole process: in nanoseconds, user and system, threads that ended included.
_SCHEDULER_CLOCK = 2


def cpu_nanoseconds(pid: int) -> int:
    """Return the CPU time of a process so far; OSError if it has ended. See clock_getcpuclockid(3)."""
    return time.clock_gettime_ns((~pid << 3) | _SCHEDULER_CLOCK)


def process_tree(root: int) -> list[int]:
    """Return a process and all below it."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in parentheses, may hold anything.
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        children[int(parent)].append(int(folder.name))
    tree = [root]
    for pid in tree:
        tree += children[pid]
    return tree


def memory_bytes(pids: list[int]) -> tuple[int, int]:
    """Return the resident bytes of processes, now and at their peaks; pages they share count for each."""
    now = peak = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
        now += int(sizes["VmRSS"].split()[0]) * 1024
        peak += int(sizes["VmHWM"].split()[0]) * 1024
    return now, peak
