"""What a run comes to: the least of its passes, ratios to our router, and what limited it."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadgen.bench.relay.cells import Cell, RelayOptions
from loadgen.bench.relay.contenders import OURS
from loadgen.bench.relay.run import Measured

# Above this share of a core, the bench itself may be what held a closed loop up.
_BUSY = 0.9


@dataclass(frozen=True, slots=True)
class Delay:
    """What a router adds to the delay of an answer, in milliseconds: the difference to a replica itself."""

    p50: float
    p99: float


def cost_microseconds(one: Measured, cell: Cell) -> float:
    """Return the CPU time of a router for each request, or event: the least of the passes."""
    return min(each.router_microseconds for each in one.passes[cell.name])


def added_delay(one: Measured, direct: Measured, cell: Cell) -> Delay:
    """Return the least p50 and the least p99 of the passes, above those of a replica asked directly."""
    via, straight = one.passes[cell.name], direct.passes[cell.name]
    return Delay(
        min(each.p50_milliseconds for each in via) - min(each.p50_milliseconds for each in straight),
        min(each.p99_milliseconds for each in via) - min(each.p99_milliseconds for each in straight),
    )


def record_of(
    measured: Sequence[Measured], cells: Sequence[Cell], options: RelayOptions, notices: Sequence[str]
) -> dict[str, Any]:
    """Return all that was measured, as JSON values; ratios are to our router, null without it."""
    direct, *routers = measured
    ours = next((one for one in routers if one.name == OURS), None)
    return {
        "machine": machine(),
        "passes": options.passes,
        "seconds": options.seconds,
        "cells": [asdict(cell) for cell in cells],
        "direct": {name: [asdict(each) for each in passes] for name, passes in direct.passes.items()},
        "routers": [_router(one, ours, direct, cells) for one in routers],
        "failures": sum(one.failures for one in measured),
        "notices": [*notices, *bottlenecks(routers, cells)],
    }


def _router(one: Measured, ours: Measured | None, direct: Measured, cells: Sequence[Cell]) -> dict[str, Any]:
    costs = {}
    delays = {}
    for cell in cells:
        if cell.what == "delay":
            added = added_delay(one, direct, cell)
            delays[cell.name] = {"added_p50_milliseconds": added.p50, "added_p99_milliseconds": added.p99}
        else:
            cost = cost_microseconds(one, cell)
            costs[cell.name] = {
                "microseconds": cost,
                "ratio": _ratio(cost, cost_microseconds(ours, cell) if ours else 0.0),
            }
    return {
        "name": one.name,
        "version": one.version,
        "costs": costs,
        "delays": delays,
        "memory_bytes": one.memory_bytes,
        "peak_memory_bytes": one.peak_memory_bytes,
        "memory_ratio": _ratio(one.peak_memory_bytes, ours.peak_memory_bytes if ours else 0),
        "failures": one.failures,
        "failure": one.failure,
        "passes": {name: [asdict(each) for each in passes] for name, passes in one.passes.items()},
    }


def _ratio(value: float, ours: float) -> float | None:
    return value / ours if ours else None


def bottlenecks(routers: Sequence[Measured], cells: Sequence[Cell]) -> list[str]:
    """Say where the caller or the replicas, and not the router, may have held requests up."""
    said = []
    for cell in cells:
        for one in routers if cell.what == "cost" else ():
            least = min(one.passes[cell.name], key=lambda each: each.router_microseconds)
            for who, busy in (("the caller", least.caller_busy), ("the replicas", least.replicas_busy)):
                if busy > max(_BUSY, least.router_busy):
                    said.append(
                        f"{who} held {one.name} up at {cell.name}: {busy:.0%} of a core,"
                        f" where the router took {least.router_busy:.0%}"
                    )
    return said


def failures(measured: Sequence[Measured]) -> str:
    """Return which routers failed requests, and how the first one of each failed; empty where none did."""
    return "\n".join(
        f"{one.name}: {one.failures} failed, the first one so: {one.failure}"
        for one in measured
        if one.failures
    )


def machine() -> dict[str, str | int]:
    """Return what the figures depend on."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
