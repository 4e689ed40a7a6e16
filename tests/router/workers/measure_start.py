"""How long `kvring router` takes from exec to the first connection that is accepted, and its CPU time.

python -m tests.router.workers.measure_start
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from loadgen.bench.relay.clocks import cpu_nanoseconds, process_tree
from loadgen.children import free_ports, start_child, stop_children

_COUNTS = (1, 2, 4)
_TIMES = 7


async def start(count: int, folder: Path) -> tuple[float, float]:
    """Start a router of so many workers; return wall seconds and CPU seconds of all its processes."""
    (port,) = free_ports(1)
    arguments = ["router", "--listen", f"127.0.0.1:{port}", "--workers", str(count)]
    arguments += ["--replica", "r0=http://127.0.0.1:9", "--set", "limits.drain_notice_seconds=0"]
    began = perf_counter()
    # As installed: with its bytecode at hand.
    child = start_child("router", arguments, folder, {"PYTHONDONTWRITEBYTECODE": ""})
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.002)
                continue
            took = perf_counter() - began
            writer.close()
            cpu = sum(cpu_nanoseconds(pid) for pid in process_tree(child.process.pid)) / 1e9
            return took, cpu
    finally:
        await stop_children([child], 3.0)


async def main() -> None:
    """Measure and print."""
    took: dict[int, list[tuple[float, float]]] = {count: [] for count in _COUNTS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(_TIMES + 1):
            for count in _COUNTS:
                took[count].append(await start(count, Path(folder)))
    sys.stdout.write(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; best of {_TIMES}\n")
    for count, runs in took.items():
        # The first wrote the bytecode.
        wall, cpu = (min(run[place] for run in runs[1:]) for place in (0, 1))
        sys.stdout.write(f"{count} workers: {wall:.2f} s, {cpu:.2f} s of CPU\n")


if __name__ == "__main__":
    asyncio.run(main())
    # What is told of a start is worth as much as what this takes at the same time.
    began = perf_counter()
    subprocess.run([sys.executable, "-c", "import aiohttp, pydantic_settings, uvloop"], check=True)
    sys.stdout.write(f"importing three of its libraries alone: {perf_counter() - began:.2f} s\n")
