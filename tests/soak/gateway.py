"""The router of the soak: the real command in processes of its own, or one within the test's own loop."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Protocol

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from loadgen.children import Child, free_ports, start_child, stop_children, wait_until_ready
from router.app import Router
from router.config import RouterConfig
from tests.soak.path import Path

# Polls come quickly; all else is as it comes.
_POLL_SECONDS = 0.1
_BAD_WORDS = re.compile(r"Traceback|never retrieved|never awaited|Unclosed| ERROR | CRITICAL ")


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a router takes: bytes of memory, open files, tasks where they can be seen."""

    rss: int
    files: int
    tasks: int = 0


class Gateway(Protocol):
    """A router of so many workers under test, `apart` where it runs in processes of its own."""

    apart: bool
    workers: int
    port: int

    def footprint(self) -> Footprint:
        """Return what it takes now."""

    async def gauges(self) -> Mapping[str, float]:
        """Return its gauges, each the sum of its series."""

    def log(self) -> Sequence[str]:
        """Return the lines of its log."""


def complaints(gateway: Gateway) -> list[str]:
    """Return what a log should never hold."""
    return [line for line in gateway.log() if _BAD_WORDS.search(line)]


class Processes:
    """`kvring router`, of one worker or several."""

    def __init__(self, child: Child, port: int, workers: int) -> None:
        self.apart = True
        self.port = port
        self._child = child
        self.workers = workers

    def footprint(self) -> Footprint:
        """See Gateway; of all its processes together."""
        pids = self._pids()
        return Footprint(sum(map(_rss, pids)), sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids))

    async def gauges(self) -> Mapping[str, float]:
        """See Gateway."""
        async with aiohttp.ClientSession() as session, session.get(f"{self._control()}/metrics") as response:
            return _sums(await response.text())

    def log(self) -> Sequence[str]:
        """See Gateway."""
        return self._child.log.read_text().splitlines()

    def _control(self) -> str:
        told = re.search(r"control on (http\S+?),", self._child.log.read_text())
        return told[1] if told else f"http://127.0.0.1:{self.port}"

    def _pids(self) -> list[int]:
        pid = self._child.process.pid
        children = FilePath(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)] if self.workers > 1 else [pid]


class Inside:
    """A router in this process, all of whose tasks, leases and connections can be seen."""

    def __init__(self, router: Router) -> None:
        self.apart = False
        self.workers = 1
        self.router = router
        self.port = int(router.address.rsplit(":", 1)[1])
        self.lines: list[str] = []

    def footprint(self) -> Footprint:
        """See Gateway; of all the test."""
        return Footprint(_rss(os.getpid()), len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()))

    async def gauges(self) -> Mapping[str, float]:
        """See Gateway."""
        self.router.fleet.observe()
        return _sums(self.router.metrics.render().decode())

    def log(self) -> Sequence[str]:
        """See Gateway."""
        return self.lines

    def left(self) -> dict[str, int]:
        """Return what requests have left behind, by what it is; nothing, where all is well."""
        replicas, router = self.router.fleet.replicas, self.router
        counts = {
            "busy connections to replicas": router.core.pool.busy,
            "clients": router._server.connections,
            "requests": router.gateway.held,
            "waiting": len(router._room),
            "leases": sum(one.load.in_flight for one in replicas),
            "awaited first bytes": sum(len(one.stall) for one in replicas),
            "streams that watch their replica": sum(len(one.stall.watchers) for one in replicas),
        }
        return {name: count for name, count in counts.items() if count}


@asynccontextmanager
async def processes(paths: Sequence[Path], workers: int, logs: FilePath) -> AsyncIterator[Processes]:
    """Run the command; none of it is left after."""
    (port,) = free_ports(1)
    arguments = ["router", "--listen", f"127.0.0.1:{port}", "--workers", str(workers)]
    for path in paths:
        arguments += ["--replica", f"{path.name}=http://127.0.0.1:{path.port}"]
    arguments += ["--set", f"fleet.state_poll_seconds={_POLL_SECONDS}"]
    child = start_child("router", arguments, logs, {})
    try:
        await wait_until_ready(child, f"http://127.0.0.1:{port}/readyz", 60)
        yield Processes(child, port, workers)
    finally:
        await stop_children([child], 10.0)


@asynccontextmanager
async def inside(paths: Sequence[Path], workers: int, logs: FilePath) -> AsyncIterator[Inside]:
    """Run a router in this loop."""
    assert workers == 1
    members = [{"name": path.name, "url": f"http://127.0.0.1:{path.port}"} for path in paths]
    fleet = {"replicas": members, "state_poll_seconds": _POLL_SECONDS}
    router = Router(RouterConfig.load(flags={"listen": {"port": 0}, "fleet": fleet}))
    await router.start()
    gateway = Inside(router)
    listener = _Listener(gateway.lines)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(listener)
    try:
        yield gateway
    finally:
        root.removeHandler(listener)
        await router.stop()


class _Listener(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines += self.format(record).splitlines()


def _rss(pid: int) -> int:
    status = FilePath(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def _sums(text: str) -> Mapping[str, float]:
    return {
        family.name: sum(sample.value for sample in family.samples)
        for family in text_string_to_metric_families(text)
        if family.type == "gauge"
    }
