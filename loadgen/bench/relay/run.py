"""One run: each cell of each pass on one router after the other, so that what the machine does meets all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadgen.bench.relay.caller import Order
from loadgen.bench.relay.cells import Cell, RelayOptions
from loadgen.bench.relay.contenders import Contender
from loadgen.bench.relay.stage import Stage

DIRECT = "direct"
_WARM_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Pass:
    """One reading of one cell: CPU time for each unit, a request or an event, and in shares of a core."""

    units: int
    router_microseconds: float
    caller_microseconds: float
    replicas_microseconds: float
    router_busy: float
    caller_busy: float
    replicas_busy: float
    p50_milliseconds: float
    p99_milliseconds: float
    failures: int
    failure: str


@dataclass(slots=True)
class Measured:
    """All passes of one router, by the cell's name, and its resident bytes after all of them."""

    name: str
    version: str
    passes: dict[str, list[Pass]] = field(default_factory=dict)
    memory_bytes: int = 0
    peak_memory_bytes: int = 0

    @property
    def failures(self) -> int:
        """Requests that failed."""
        return sum(one.failures for passes in self.passes.values() for one in passes)

    @property
    def failure(self) -> str:
        """The first failure's story."""
        stories = [one.failure for passes in self.passes.values() for one in passes if one.failure]
        return stories[0] if stories else ""


async def measure(
    contenders: Sequence[Contender],
    cells: Sequence[Cell],
    options: RelayOptions,
    on_cell: Callable[[str], None] = lambda what: None,
) -> list[Measured]:
    """Measure all cells of all routers, and the delays of a replica asked directly, which come first."""
    direct = Measured(DIRECT, "")
    routers = [Measured(one.name, one.version) for one in contenders]
    on_cell("starting " + ", ".join(one.name for one in contenders))
    async with Stage(contenders) as stage:
        for number in range(options.passes):
            for cell in cells:
                on_cell(f"pass {number + 1} of {options.passes}: {cell.name}")
                for one in [direct, *routers] if cell.what == "delay" else routers:
                    reading = await _measure_cell(stage, one, cell, options.seconds, number)
                    one.passes.setdefault(cell.name, []).append(reading)
        for one in routers:
            one.memory_bytes, one.peak_memory_bytes = stage.memory(one.name)
    return [direct, *routers]


async def _measure_cell(stage: Stage, one: Measured, cell: Cell, seconds: float, seed: int) -> Pass:
    routed = one.name != DIRECT
    pids = stage.pids(one.name) if routed else []
    reading = await stage.call(
        Order(
            port=stage.port(one.name) if routed else stage.direct_port,
            kind=cell.kind,
            body_bytes=cell.body_bytes,
            concurrency=cell.concurrency,
            warm_seconds=seconds * _WARM_SHARE,
            seconds=seconds,
            key=stage.key,
            seed=seed,
            pids=(stage.replicas_pid, *pids),
        )
    )
    units = reading.events if cell.per_event else reading.requests
    per_unit = 1 / 1000 / max(1, units)
    of_a_core = 1 / 1e9 / reading.seconds
    replicas, *processes = reading.cpu_nanoseconds
    router, caller = sum(processes), reading.own_cpu_nanoseconds
    return Pass(
        units=units,
        router_microseconds=router * per_unit,
        caller_microseconds=caller * per_unit,
        replicas_microseconds=replicas * per_unit,
        router_busy=router * of_a_core,
        caller_busy=caller * of_a_core,
        replicas_busy=replicas * of_a_core,
        p50_milliseconds=reading.p50_milliseconds,
        p99_milliseconds=reading.p99_milliseconds,
        failures=reading.failures or int(not units),
        failure=reading.failure or ("" if units else "not one answer came"),
    )
