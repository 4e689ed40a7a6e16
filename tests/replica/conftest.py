"""Replicas with the echo runner, on real sockets, for one test each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from replica.app import RunningReplica, start
from replica.options import ReplicaOptions


class Client:
    """Talks to one replica."""

    def __init__(self, replica: RunningReplica, http: httpx.AsyncClient) -> None:
        self.replica = replica
        self.http = http

    async def chat(self, content: str | list[dict[str, Any]], **fields: Any) -> httpx.Response:
        """Post a chat with one user message, or with the messages given."""
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        body = {"model": "m", "messages": messages, "max_tokens": 4, **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def complete(self, prompt: object, **fields: Any) -> httpx.Response:
        """Post a text completion."""
        body = {"model": "m", "prompt": prompt, "max_tokens": 4, **fields}
        return await self.http.post("/v1/completions", json=body)

    async def state(self) -> dict[str, Any]:
        """Read /state."""
        response = await self.http.get("/state")
        assert response.status_code == 200
        state: dict[str, Any] = response.json()
        return state

    async def metric(self, name: str) -> float:
        """Read one sample, given with its labels if it has more than the usual."""
        labels = "" if "{" in name else '{engine="0",model_name="m"}'
        for line in (await self.http.get("/metrics")).text.splitlines():
            if line.startswith(f"{name}{labels} "):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"there is no metric {name}")

    async def idle(self) -> dict[str, Any]:
        """Wait until nothing runs or waits; return the state."""
        return await self.until(lambda state: state["load"]["running"] + state["load"]["waiting"] == 0)

    async def until(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the state is as wanted; return it."""
        async with asyncio.timeout(10):
            while True:
                state = await self.state()
                if fits(state):
                    return state
                await asyncio.sleep(0.002)


Launch = Callable[..., Awaitable[Client]]


def echo_options(**fields: Any) -> dict[str, Any]:
    """Options of a quick replica without a model; nested ones are merged."""
    options: dict[str, Any] = {
        "name": "replica-1",
        "port": 0,
        "model": "m",
        "runner": "echo",
        "model_directory": "",
        "digest_seconds": 0.01,
        "linger_seconds": 0,
        "echo": {
            "decode_seconds": 0.0005,
            "prefill": {"base_seconds": 0.0005, "per_token_seconds": 1e-7, "per_token_context_seconds": 0},
        },
    }
    for name, value in fields.items():
        options[name] = {**options[name], **value} if isinstance(options.get(name), dict) else value
    return options


@pytest.fixture
async def launch() -> AsyncIterator[Launch]:
    """Start echo replicas with the options given; all are stopped after the test."""
    async with AsyncExitStack() as stack:

        async def launch(**fields: Any) -> Client:
            replica = await start(ReplicaOptions.load(flags=echo_options(**fields)))
            stack.push_async_callback(replica.stop)
            http = httpx.AsyncClient(base_url=replica.url, trust_env=False, timeout=30)
            await stack.enter_async_context(http)
            return Client(replica, http)

        yield launch
