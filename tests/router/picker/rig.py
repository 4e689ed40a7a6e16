"""A picker over scripted replicas, and an Envoy in front of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from router.config import RouterConfig
from router.picker.app import EndpointPicker
from tests.envoy import Envoy, envoy
from tests.router.picker.envoy_config import Change, envoy_config
from tests.router.scripted import ScriptedReplica, until

CHAT = "/v1/chat/completions"

# Whatever the picker learns then, it learns from traffic.
BLIND = {"state_poll_seconds": 60, "idle_poll_seconds": 600}


def chat(topic: str, turns: int = 1, **fields: Any) -> dict[str, Any]:
    """A conversation of so many turns, long enough to have a prefix worth keeping."""
    messages = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{topic}, part {turn}. " + f"Tell me of {topic}. " * 40})
        messages.append({"role": "assistant", "content": f"So much for {topic}, part {turn}."})
    return {"model": "m", "messages": messages[:-1], **fields}


def error_of(body: bytes) -> dict[str, Any]:
    """The error of an answer in OpenAI's shape."""
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@dataclass
class PickerRig:
    """Replicas, a picker, and a client."""

    picker: EndpointPicker
    replicas: list[ScriptedReplica]
    session: aiohttp.ClientSession

    def address(self, index: int) -> str:
        return self.replicas[index].url.removeprefix("http://")

    def ports(self) -> list[int]:
        return [int(replica.url.rpartition(":")[2]) for replica in self.replicas]

    def served(self) -> list[int]:
        """How many requests each replica got."""
        return [len(replica.requests) for replica in self.replicas]

    def in_flight(self) -> int:
        """Leases, of all replicas."""
        return sum(replica.load.in_flight for replica in self.picker.core.fleet.replicas)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels."""
        self.picker.core.fleet.observe()
        return sum(
            sample.value
            for metric in self.picker.core.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def post(
        self, envoy: Envoy, body: Any, path: str = CHAT, **options: Any
    ) -> tuple[int, bytes, aiohttp.ClientResponse]:
        """Post JSON (or raw bytes) through an Envoy, and read the whole answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        options.setdefault("headers", {"Content-Type": "application/json"})
        async with self.session.post(envoy.url + path, data=data, **options) as response:
            return response.status, await response.read(), response

    def envoy(self, directory: Path, *edits: Change) -> AbstractAsyncContextManager[Envoy]:
        """An Envoy over these replicas; `edits` change its configuration."""
        return envoy(envoy_config(self.picker.port, self.ports(), *edits), directory)

    async def idle(self) -> None:
        """Wait until the picker holds nothing any more."""
        await until(lambda: self.picker.service.streams == 0)


@asynccontextmanager
async def picker_rig(count: int = 3, **changes: Any) -> AsyncIterator[PickerRig]:
    """Start `count` replicas and a picker. `changes` are sections of the configuration."""
    async with AsyncExitStack() as stack:
        replicas = [ScriptedReplica(f"r{index}") for index in range(count)]
        for replica in replicas:
            await replica.start()
            stack.push_async_callback(replica.stop)
        fleet = {
            "replicas": [{"name": replica.name, "url": replica.url} for replica in replicas],
            "state_poll_seconds": 0.05,
            "idle_poll_seconds": 0.05,
            "warming_seconds": 0,
            "probe_timeout_seconds": 1,
        } | changes.pop("fleet", {})
        flags = {
            "control": {"port": 0},
            "picker": {"port": 0, "health_port": 0} | changes.pop("picker", {}),
            "fleet": fleet,
            "observe": {"access_log": False},
            **changes,
        }
        picker = EndpointPicker(RouterConfig.load(flags=flags))
        await picker.start()
        stack.push_async_callback(picker.stop)
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=20)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=timeout))
        await until(lambda: sum(replica.usable for replica in picker.core.fleet.replicas) == count)
        yield PickerRig(picker, replicas, session)


@asynccontextmanager
async def envoy_rig(
    directory: Path, *edits: Change, count: int = 3, **changes: Any
) -> AsyncIterator[tuple[PickerRig, Envoy]]:
    """The same with an Envoy over it; `edits` change Envoy's configuration, `changes` the picker's."""
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(picker_rig(count, **changes))
        yield rig, await stack.enter_async_context(rig.envoy(directory, *edits))
