"""A router of several workers in processes of its own, and what tests look at from outside."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from loadgen.children import Child, free_ports, start_child, stop_children, wait_until_ready
from tests.router.scripted import ScriptedReplica, until

# By name and labels.
Series = tuple[str, tuple[tuple[str, str], ...]]


class Running:
    """A supervisor and its workers, and a client whose every request may reach another worker."""

    def __init__(self, child: Child, url: str, session: aiohttp.ClientSession) -> None:
        self.child = child
        self.url = url
        self.session = session

    @property
    def supervisor(self) -> int:
        return self.child.process.pid

    def workers(self) -> list[int]:
        """Return the process ids of the workers that are there now."""
        return children_of(self.supervisor)

    @property
    def control(self) -> str:
        """Where metrics and explanations are, as the log tells."""
        return self.log().split("control on ")[1].split(",")[0]

    def log(self) -> str:
        return self.child.log.read_text()

    async def scrape(self) -> tuple[dict[Series, float], dict[Series, float]]:
        """Return all counts (those of histograms too), and all gauges."""
        async with self.session.get(f"{self.control}/metrics") as response:
            assert response.status == 200
            text = await response.text()
        counts: dict[Series, float] = {}
        gauges: dict[Series, float] = {}
        for family in text_string_to_metric_families(text):
            told = gauges if family.type == "gauge" else counts
            for sample in family.samples:
                told[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
        return counts, gauges

    async def gauge(self, name: str) -> float:
        _, gauges = await self.scrape()
        return gauges[name, ()]

    async def status(self, path: str) -> int:
        async with self.session.get(self.url + path) as response:
            return response.status

    async def exit_code(self) -> int:
        await until(lambda: self.child.process.poll() is not None, limit_seconds=20)
        code = self.child.process.returncode
        assert code is not None
        return code

    async def serving(self, count: int) -> None:
        """Wait until so many workers serve."""
        while True:
            try:
                if await self.gauge("kvring_workers") == count:
                    return
            except aiohttp.ClientError:
                pass


@asynccontextmanager
async def running(
    replica: ScriptedReplica,
    logs: Path,
    count: int,
    *settings: str,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Running]:
    """Start `count` workers over one replica; none is left after."""
    (port,) = free_ports(1)
    arguments = ["router", "--listen", f"127.0.0.1:{port}", "--workers", str(count)]
    arguments += ["--replica", f"{replica.name}={replica.url}"]
    arguments += ["--config", str(config)] if config is not None else []
    for setting in settings:
        arguments += ["--set", setting]
    child = start_child("router", arguments, logs, environment or {})
    url = f"http://127.0.0.1:{port}"
    # A connection of its own for each: the kernel gives each to a worker by chance.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    timeout = aiohttp.ClientTimeout(total=30)
    up: Running | None = None
    workers: list[int] = []
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            await wait_until_ready(child, f"{url}/readyz", 60)
            up = Running(child, url, session)
            await until(lambda: "control on " in child.log.read_text())
            await up.serving(count)
            yield up
            workers = up.workers() if child.process.poll() is None else []
    finally:
        await stop_children([child], 4.0)
        for pid in workers:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


async def until_it(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what other processes tell; fails after a bound that only a broken program meets."""
    async with asyncio.timeout(15):
        while not await condition():  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.02)


def children_of(pid: int) -> list[int]:
    """Return the process ids of a process's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def open_files(pid: int) -> int:
    """Return how many file descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def alive(pid: int) -> bool:
    """Say whether a process runs, and is not just to be reaped yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
