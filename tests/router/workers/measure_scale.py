"""What a second worker gives: requests a second and CPU time a request with one worker and with two.

    python -m tests.router.workers.measure_scale [SECONDS]

The load client and the mock replicas take cores as well: on a machine with two, throughput cannot double.
What says how near to linear it is, is the CPU time of a request: where it stays the same, twice the cores
serve twice the requests.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from loadgen.bench.relay.cells import COSTS, RelayOptions
from loadgen.bench.relay.contenders import Contender, Place, find_contenders
from loadgen.bench.relay.run import measure

_COUNTS = (1, 2)


def contender(ours: Contender, workers: int) -> Contender:
    """Return our router with so many workers."""

    def command(place: Place) -> Sequence[str]:
        return [*ours.command(place), "--workers", str(workers)]

    return replace(ours, name=f"{workers} workers", command=command)


async def main(seconds: float) -> None:
    """Measure and print."""
    found, _ = find_contenders(["kvring"], sys.executable)
    contenders = [contender(found[0], count) for count in _COUNTS]
    _, *routers = await measure(contenders, COSTS, RelayOptions(passes=3, seconds=seconds))
    sys.stdout.write(f"{os.cpu_count()} cores, shared with client and replicas; best of three\n")
    for cell in COSTS:
        costs = []
        for router in routers:
            best = min(router.passes[cell.name], key=lambda one: one.router_microseconds)
            costs.append(best.router_microseconds)
            each = best.router_microseconds
            sys.stdout.write(
                f"{cell.name:>7} {router.name}: {each:6.1f} us, router busy {best.router_busy:4.2f} cores, "
                f"others {best.caller_busy + best.replicas_busy:4.2f}, "
                f"{best.router_busy * 1e6 / each:6.0f}/s, {best.failures} failures\n"
            )
        times = 2 * costs[0] / costs[1]
        sys.stdout.write(f"{cell.name:>7} two workers on two cores: {times:.2f} times one on one\n")
    one, two = (router.memory_bytes for router in routers)
    sys.stdout.write(f"resident, shared pages counted for each: {one / 1e6:.0f} and {two / 1e6:.0f} MB\n")


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0))
