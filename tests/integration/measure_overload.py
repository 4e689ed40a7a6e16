"""Measures what is served in time at loads beyond capacity: python -m tests.integration.measure_overload

With limits and without; answers count that are whole within the clients' deadline.
"""

from __future__ import annotations

import asyncio
import sys
from statistics import quantiles
from typing import Any

from tests.integration.overloading import DEADLINE_SECONDS, LIMITS, NO_LIMITS, Seen, crowd

_LOADS = (0.5, 1.0, 1.5, 2.0, 3.0)
_SECONDS = 10.0
_HEADS = (
    "load",
    "good/s",
    "of peak",
    "shed",
    "late",
    "p50 s",
    "p99 s",
    "sheds p99 ms",
    "hits",
    "shed long/short",
)


def _percentile(values: list[float], percent: int) -> float:
    return quantiles(values, n=100)[percent - 1] if len(values) > 1 else 0.0


def _row(load: float, seen: Seen, peak: float) -> list[str]:
    return [
        f"{load:g}",
        f"{seen.goodput:.1f}",
        f"{seen.goodput / peak:.2f}",
        f"{len(seen.shed_seconds) / seen.sent:.0%}",
        f"{(seen.too_late + seen.failed) / seen.sent:.0%}",
        f"{_percentile(seen.accepted_seconds, 50):.2f}",
        f"{_percentile(seen.accepted_seconds, 99):.2f}",
        f"{_percentile(seen.shed_seconds, 99) * 1000:.0f}",
        f"{seen.hit_ratio:.2f}",
        f"{seen.shed_share(long=True):.0%} / {seen.shed_share(long=False):.0%}",
    ]


async def measure(title: str, limits: dict[str, Any]) -> None:
    """Print a table, a line for each load."""
    async with crowd(**limits) as clients:
        rows = [(load, await clients.come(load, _SECONDS)) for load in _LOADS]
        sys.stdout.write(
            f"\n{title}: {clients.capacity:.1f} answers/s at most, deadline {DEADLINE_SECONDS:g} s\n"
        )
    peak = max(seen.goodput for _, seen in rows)
    for cells in (_HEADS, *(_row(load, seen, peak) for load, seen in rows)):
        sys.stdout.write(
            "  ".join(cell.rjust(len(head)) for cell, head in zip(cells, _HEADS, strict=True)) + "\n"
        )


async def main() -> None:
    """Measure both."""
    await measure("with limits", LIMITS)
    await measure("without", NO_LIMITS)


if __name__ == "__main__":
    asyncio.run(main())
