"""A rolling restart of real processes, each told to go by SIGTERM, under load: nothing is lost."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from loadgen.children import Child, free_ports, start_child, stop_children, wait_until_ready
from tests.router.scripted import until

# Told to go, a pod is left out of its Service within this.
_NOTICE_SECONDS = 0.2
_PAUSE_SECONDS = 0.05
_READY_SECONDS = 30.0


@dataclass
class _Process:
    """A command and its port, and the child that runs it now."""

    name: str
    arguments: Sequence[str]
    port: int
    ready_path: str
    logs: Path
    child: Child = field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.child = start_child(self.name, self.arguments, self.logs, {"OMP_NUM_THREADS": "1"})

    async def ready(self) -> None:
        await wait_until_ready(self.child, self.url + self.ready_path, _READY_SECONDS)

    async def restart(self) -> int:
        """Tell it to go, start it anew and wait until it is ready; return how the old one ended."""
        old = self.child.process
        old.send_signal(signal.SIGTERM)
        await until(lambda: old.poll() is not None, limit_seconds=20)
        self.start()
        await self.ready()
        return old.returncode


def _sets(*settings: str) -> list[str]:
    return [flag for setting in settings for flag in ("--set", setting)]


def _replica(name: str, port: int, logs: Path) -> _Process:
    arguments = [
        *("replica", "--name", name, "--port", str(port), "--model", "m"),
        *("--runner", "echo", "--model-directory", ""),
        *_sets("echo.decode_seconds=0.01", "echo.prefill.base_seconds=0.001"),
        *_sets("linger_seconds=0.6", "drain_seconds=20"),
    ]
    return _Process(name, arguments, port, "/health", logs)


def _router(name: str, port: int, replicas: Sequence[_Process], logs: Path) -> _Process:
    arguments = ["router", "--listen", f"127.0.0.1:{port}"]
    for replica in replicas:
        arguments += ["--replica", f"{replica.name}={replica.url}"]
    arguments += _sets("limits.drain_notice_seconds=0.6", "limits.drain_seconds=20")
    return _Process(name, arguments + _sets("fleet.state_poll_seconds=0.1"), port, "/readyz", logs)


@asynccontextmanager
async def _fleet(logs: Path) -> AsyncIterator[tuple[list[_Process], list[_Process]]]:
    """Run three replicas and two routers; kill all that is left."""
    ports = free_ports(5)
    replicas = [_replica(f"r{index}", port, logs) for index, port in enumerate(ports[:3])]
    routers = [_router(f"router-{index}", port, replicas, logs) for index, port in enumerate(ports[3:])]
    started: list[_Process] = []
    try:
        for process in (*replicas, *routers):
            process.start()
            started.append(process)
        for process in started:
            await process.ready()
        yield replicas, routers
    finally:
        await stop_children([process.child for process in started], 5.0)


class _Service:
    """Sends to the routers that said a moment ago that they are ready, each chat over its own connection."""

    def __init__(self, routers: Sequence[_Process]) -> None:
        self._addresses = [router.url for router in routers]
        self.ready: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.sent = 0

    async def watch(self) -> None:
        async with _session() as session:
            while True:
                self.ready = [one for one in self._addresses if await _answers(session, f"{one}/readyz")]
                await asyncio.sleep(_NOTICE_SECONDS / 4)

    async def load(self, over: asyncio.Event) -> None:
        """Begin chats until it is over, then await their ends."""
        async with asyncio.TaskGroup() as chats:
            while not over.is_set():
                chats.create_task(self._chat(self.sent))
                self.sent += 1
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _chat(self, number: int) -> None:
        """Stream one chat to its end; whatever does not end well is an outcome of its own."""
        address = self.ready[number % len(self.ready)]
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": f"Chat {number % 20}. " + f"w{number % 20} " * 60}],
            "max_tokens": 40,
            "stream": True,
        }
        try:
            async with (
                _session() as session,
                session.post(f"{address}/v1/chat/completions", json=body) as response,
            ):
                raw = await response.read()
        except aiohttp.ClientError as error:
            self.outcomes[type(error).__name__] += 1
            return
        if response.status != 200:
            self.outcomes[f"{response.status} {json.loads(raw)['error']['message']}"] += 1
        else:
            whole = raw.endswith(b"data: [DONE]\n\n") and b'"error"' not in raw
            self.outcomes["whole" if whole else "cut"] += 1


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def test_processes_that_are_restarted_one_after_another_lose_nothing(tmp_path: Path) -> None:
    async with asyncio.timeout(120), _fleet(tmp_path) as (replicas, routers):
        service = _Service(routers)
        watching = asyncio.create_task(service.watch())
        await until(lambda: len(service.ready) == 2)
        over = asyncio.Event()
        loading = asyncio.create_task(service.load(over))
        codes = []
        for process in (*replicas, *routers):
            codes.append(await process.restart())
            # The next one only when the Service has them all, as a rollout waits.
            await until(lambda: len(service.ready) == 2)
        over.set()
        await loading
        watching.cancel()
        assert codes == [0] * 5
        assert dict(service.outcomes) == {"whole": service.sent}
        assert service.sent > 100
    for process in (*replicas, *routers):
        assert process.child.process.returncode == 0
        assert "Traceback" not in (tmp_path / f"{process.name}.log").read_text()
