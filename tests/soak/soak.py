"""The soak: a router between clients and replicas of all kinds of faults, for so long; then what is left."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from random import Random

from tests.soak.clients import Clients
from tests.soak.faults import NO_FAULT, Fault, Kind, draw
from tests.soak.gateway import Footprint, Gateway, complaints
from tests.soak.judge import books, verdict
from tests.soak.path import Attempt, Path
from tests.soak.ports import steady_ports
from tests.soak.replicas import Replicas
from tests.soak.trouble import Trouble

Opening = Callable[[Sequence[Path], int, FilePath], AbstractAsyncContextManager[Gateway]]

_REPLICAS = 4
_FAULTY_SHARE = 0.15
_LET_GO_SECONDS = 10.0
# Within this, all that was out is back and all that was held is let go: pauses of replicas grow to 30 s.
_SETTLE_SECONDS = 60.0
_SAMPLE_SECONDS = 1.0
_GAUGES = (
    "kvring_in_flight_requests",
    "kvring_waiting_requests",
    "kvring_replica_in_flight_requests",
)
_GATHERED_SECONDS = 0.5
# Connections of one worker to a replica over which it is asked how it is.
_POLLING = 3
# Of the time, until memory is what it takes to serve.
_WARM_SHARE = 0.3


@dataclass(slots=True)
class Report:
    """What came of a soak. `faults` is what must not be; all else is told."""

    seed: int
    seconds: float
    faults: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    befell: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    footprints: list[Footprint] = field(default_factory=list)
    settled_seconds: float = 0.0

    @property
    def asked(self) -> int:
        """Requests whose clients stayed for the answer, of those that could be served."""
        apart = ("left", "garbage", "400")
        return sum(count for what, count in self.outcomes.items() if not what.startswith(apart))

    @property
    def right(self) -> int:
        """Of these, those that were answered as they should be."""
        return self.outcomes["right"]

    @property
    def warm(self) -> Footprint:
        """What the router took once it was warm."""
        return self.footprints[int(len(self.footprints) * _WARM_SHARE)]

    def __str__(self) -> str:
        memory = [one.rss / 2**20 for one in self.footprints]
        lines = [
            f"soak of {self.seconds:.0f} s, seed {self.seed}",
            f"{self.asked} answers, {self.right} of them right; {self.attempts} attempts at replicas",
            "outcomes: " + _listed(self.outcomes),
            "befell: " + _listed(self.befell),
            f"settled in {self.settled_seconds:.1f} s",
            f"memory, MiB: {memory[0]:.1f} at first, {self.warm.rss / 2**20:.1f} warm, {max(memory):.1f} at"
            f" most, {memory[-1]:.1f} at last",
            f"files {self.footprints[0].files} at first, {max(one.files for one in self.footprints)} at most,"
            f" {self.footprints[-1].files} at last",
            *(f"FAULT {fault}" for fault in self.faults[:40]),
        ]
        return "\n".join(lines)


class Soak:
    """One soak, set up; `run` it once."""

    def __init__(
        self, gateway: Gateway, paths: Sequence[Path], trouble: Trouble, attempts: list[Attempt], seed: int
    ) -> None:
        self.gateway = gateway
        self.clients = Clients(gateway.port, Random(seed))
        self.faulty_share = 0.0
        self._paths = paths
        self._trouble = trouble
        self._attempts = attempts
        self._seed = seed

    async def run(self, seconds: float, clients: int) -> Report:
        """Let it rain; then let all settle, and judge."""
        report = Report(self._seed, seconds)
        await self._settled(report)
        first, fronts = self.gateway.footprint(), self._fronts
        report.footprints.append(first)
        await self.clients.fill()
        over = asyncio.Event()
        self.faulty_share = _FAULTY_SHARE
        async with asyncio.TaskGroup() as all:
            sampling = all.create_task(self._sample(report))
            loading = all.create_task(self.clients.run(clients, over))
            making = all.create_task(self._trouble.run(over))
            await asyncio.sleep(seconds)
            over.set()
            self.faulty_share = 0.0
            await making
            await loading
            sampling.cancel()
        await self._settled(report)
        await self._let_go(report, first, fronts)
        report.footprints.append(self.gateway.footprint())
        report.attempts = len(self._attempts)
        report.outcomes = self.clients.outcomes
        report.befell = self._trouble.made + Counter(
            str(one.fault.kind) for one in self._attempts if one.fault.kind is not Kind.NONE
        )
        report.faults += self.clients.violations
        report.faults += verdict(self._attempts, self.clients, self._trouble.times)
        # Lines of the log are gathered for a moment before they are written.
        await asyncio.sleep(_GATHERED_SECONDS)
        report.faults += complaints(self.gateway)
        report.faults += books(self.gateway.log(), self.clients)
        return report

    @property
    def _fronts(self) -> int:
        return sum(len(path.fronts) for path in self._paths)

    async def _sample(self, report: Report) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            report.footprints.append(self.gateway.footprint())

    async def _settled(self, report: Report) -> None:
        """Wait until all replicas are routed to, and no gauge tells of any request."""
        loop = asyncio.get_running_loop()
        began, gauges = loop.time(), await self.gateway.gauges()
        while loop.time() - began < _SETTLE_SECONDS:
            gauges = await self.gateway.gauges()
            if gauges["kvring_replica_usable"] == _REPLICAS and not any(gauges[one] for one in _GAUGES):
                report.settled_seconds = loop.time() - began
                return
            await asyncio.sleep(0.1)
        held = {name: gauges[name] for name in ("kvring_replica_usable", *_GAUGES)}
        report.faults.append(f"not settled within {_SETTLE_SECONDS:.0f} s: {held}")

    async def _let_go(self, report: Report, first: Footprint, fronts: int) -> None:
        """Wait until there is what was at first, but for connections to replicas that are kept."""
        for path in self._paths:
            if len(path.fronts) > self.gateway.workers * (path.most + _POLLING):
                report.faults.append(f"{len(path.fronts)} connections to {path.name}, of {path.most} in use")
        loop = asyncio.get_running_loop()
        until = loop.time() + _LET_GO_SECONDS
        while (more := self._more(first, fronts))[0] > 0:
            if loop.time() > until:
                report.faults.append("{} {} are there that were not at first".format(*more))
                return
            await asyncio.sleep(0.1)

    def _more(self, first: Footprint, fronts: int) -> tuple[int, str]:
        """Return how many there are more of what can be told: files of a process, or tasks of this loop."""
        now = self.gateway.footprint()
        if self.gateway.apart:
            return now.files - first.files - self._fronts + fronts, "files"
        # The one that samples is over by now, as are all clients.
        return now.tasks - first.tasks, "tasks"


@asynccontextmanager
async def soaking(opening: Opening, seed: int, workers: int, logs: FilePath) -> AsyncIterator[Soak]:
    """Set up a soak; nothing is left of it after."""
    attempts: list[Attempt] = []
    random, fates = Random(seed + 1), Random(seed + 2)
    soaks: list[Soak] = []

    def fate() -> Fault:
        return draw(fates, soaks[0].faulty_share) if soaks else NO_FAULT

    replicas = Replicas(_REPLICAS, logs / "replicas.log")
    ports = zip(steady_ports(_REPLICAS), replicas.ports.items(), strict=True)
    paths = [Path(name, port, replica_port, fate, attempts) for port, (name, replica_port) in ports]
    try:
        for path in paths:
            await path.listen()
        starting = asyncio.create_task(_start_all(replicas))
        async with opening(paths, workers, logs) as gateway:
            await starting
            trouble = Trouble(paths, replicas, random, pause_seconds=0.7)
            soak = Soak(gateway, paths, trouble, attempts, seed)
            soaks.append(soak)
            yield soak
    finally:
        replicas.close()
        for path in paths:
            await path.close()


async def _start_all(replicas: Replicas) -> None:
    for name in replicas.ports:
        await replicas.start(name)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
