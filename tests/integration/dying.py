"""A fleet whose replicas are killed within their streams, and a client that tells what it saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from typing import Any

import aiohttp
import orjson

from loadgen.children import free_ports
from router.app import Router
from router.config import RouterConfig
from router.wire.sse import DONE, EventCutter, event_data
from tests.router.scripted import until

_ROOT = Path(__file__).resolve().parents[2]
# On a machine that is busy with other tests, slow is not hung: here they die, and nothing else.
_PATIENT = {"hung": {"poll_timeout_seconds": 10, "silence_seconds": 120}, "outliers": {"share": 0}}
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass
class Seen:
    """One stream as a client saw it. `clean` is false where its body was cut."""

    status: int = 0
    replica: str = ""
    clean: bool = True
    events: list[bytes] = field(default_factory=list)

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """What its events say."""
        return [orjson.loads(event_data(event) or b"") for event in self.events if event != DONE]

    @property
    def text(self) -> str:
        """All of its text."""
        choices = [choice for chunk in self.chunks for choice in chunk.get("choices", ())]
        return "".join(one["text"] if "text" in one else one["delta"].get("content", "") for one in choices)

    @property
    def error(self) -> dict[str, Any] | None:
        """The error within it."""
        return next((chunk["error"] for chunk in self.chunks if "error" in chunk), None)

    def whole(self) -> tuple[object, ...]:
        """What it says, however it was cut into events; AssertionError where it is not one whole stream."""
        assert self.status == 200
        assert self.clean
        assert self.error is None
        assert self.events[-1] == DONE
        assert self.events.count(DONE) == 1
        chunks = self.chunks
        assert len({(chunk["id"], chunk["created"], chunk["object"]) for chunk in chunks}) == 1
        assert not any(b'token_ids":[' in event for event in self.events)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        return (
            self.text,
            sum("role" in one.get("delta", {}) for one in choices),
            [one["finish_reason"] for one in choices if one["finish_reason"]],
            [(one["prompt_tokens"], one["completion_tokens"], one["total_tokens"]) for one in usages],
        )


class DyingFleet:
    """Replicas as processes of their own, a router in this one, and a client."""

    def __init__(
        self, nursery: subprocess.Popen[str], options: dict[str, Any], session: aiohttp.ClientSession
    ) -> None:
        self.router: Router
        self.session = session
        self._nursery = nursery
        self._options = options
        self._ports: dict[str, int] = {}
        self._pids: dict[str, int] = {}

    async def start(self, count: int, router: dict[str, Any]) -> None:
        """Start `count` replicas, r0 and so on, and a router with these options."""
        for index, port in enumerate(free_ports(count)):
            self._ports[f"r{index}"] = port
            self.born(f"r{index}")
        members = [{"name": name, "url": f"http://127.0.0.1:{port}"} for name, port in self._ports.items()]
        fleet = {"replicas": members, "state_poll_seconds": 0.2, "warming_seconds": 0, **_PATIENT}
        router = {**router, "fleet": {**fleet, **router.get("fleet", {})}}
        flags = {"listen": {"port": 0}, "observe": {"access_log": False}}
        self.router = Router(RouterConfig.load(flags={**flags, **router}))
        await self.router.start()
        await self.ready(count)

    async def ready(self, count: int) -> None:
        """Wait until so many replicas take requests."""
        fleet = self.router.fleet
        await until(lambda: sum(one.usable for one in fleet.replicas) >= count, limit_seconds=120)

    def usable(self, name: str) -> bool:
        """Say whether the router sends requests to one."""
        return any(one.usable for one in self.router.fleet.replicas if one.name == name)

    @property
    def alive(self) -> set[str]:
        """The names of those that were not killed."""
        return set(self._pids)

    def born(self, name: str) -> None:
        """Start a replica, again or for the first time."""
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        options = {**self._options, "name": name, "port": self._ports[name], "linger_seconds": 0}
        self._nursery.stdin.write(json.dumps(options) + "\n")
        self._nursery.stdin.flush()
        self._pids[name] = int(self._nursery.stdout.readline())

    def kill(self, name: str) -> None:
        """Kill a replica, now."""
        os.kill(self._pids.pop(name), SIGKILL)

    async def stream(
        self, body: dict[str, Any], path: str = "/v1/chat/completions", seen: Seen | None = None
    ) -> Seen:
        """Read one stream to its end, into `seen`."""
        seen = Seen() if seen is None else seen
        async for _ in self.events(body, path, seen):
            pass
        return seen

    async def events(self, body: dict[str, Any], path: str, seen: Seen) -> AsyncIterator[int]:
        """Read one stream; yield how many characters have come, at the head and at each event."""
        body = {"model": "m", "stream": True, "stream_options": {"include_usage": True}, **body}
        cutter = EventCutter()
        async with self.session.post(self.router.address + path, json=body) as response:
            seen.status = response.status
            seen.replica = response.headers.get("x-kvring-replica", "")
            yield 0
            with suppress(aiohttp.ClientPayloadError):
                seen.clean = False
                while data := await response.content.readany():
                    for event in cutter.feed(data):
                        seen.events.append(event)
                        yield len(seen.text)
                seen.clean = True

    async def killed_at(
        self,
        characters: int,
        body: dict[str, Any],
        path: str = "/v1/chat/completions",
        then: Callable[[Seen], None] = lambda seen: None,
    ) -> Seen:
        """Read a stream whose replica is killed once so much text has come; `then` is called at once."""
        seen, killed = Seen(), False
        async for count in self.events(body, path, seen):
            if count >= characters and not killed:
                killed = True
                self.kill(seen.replica)
                then(seen)
        assert killed, (seen.status, seen.events[-1:])
        return seen

    def metric(self, result: str) -> float:
        """How many streams went on with others, or failed to."""
        for line in self.router.metrics.render().decode().splitlines():
            if line.startswith("kvring_") and "continued_streams_total{" in line and f'"{result}"' in line:
                return float(line.rsplit(" ", 1)[1])
        return 0.0


@asynccontextmanager
async def dying_fleet(
    logs: Path, options: dict[str, Any], count: int, router: dict[str, Any] | None = None
) -> AsyncIterator[DyingFleet]:
    """Run a fleet of replicas with these options; nothing of it is left afterwards."""
    nursery = _nursery(logs / "replicas.log", options.get("runner", "torch"))
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
            fleet = DyingFleet(nursery, {"model": "m", **options}, session)
            try:
                await fleet.start(count, router or {})
                yield fleet
            finally:
                if hasattr(fleet, "router"):
                    await fleet.router.stop()
    finally:
        # Its forks end with it.
        nursery.kill()
        nursery.communicate()


def _nursery(log: Path, runner: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", str(Path(__file__).with_name("nursery.py")), str(os.getpid()), runner]
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": str(_ROOT)},
            text=True,
        )
