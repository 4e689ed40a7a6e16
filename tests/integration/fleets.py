"""A whole fleet in this process: echo replicas with the true block pool, and routers over them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from replica.app import RunningReplica, start
from replica.options import ReplicaOptions
from router.app import Router
from router.config import RouterConfig
from tests.router.scripted import until

MODEL = "m"


@dataclass
class Reply:
    """What a client saw of one answer."""

    status: int
    replica: str
    expected_tokens: int
    tier: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""


@dataclass
class LiveFleet:
    """Replicas, routers and a client."""

    session: aiohttp.ClientSession
    directory: Path | None
    replicas: list[RunningReplica] = field(default_factory=list)
    routers: list[Router] = field(default_factory=list)

    async def add_router(self, **changes: Any) -> Router:
        """Start another router over the same replicas, listed in another order each time."""
        count = len(self.replicas)
        turn = len(self.routers) % count
        order = self.replicas[turn:] + self.replicas[:turn]
        fleet = {
            "replicas": [{"name": replica.options.name, "url": replica.url} for replica in order],
            "state_poll_seconds": 0.05,
            "digest_poll_seconds": 0.2,
        } | changes.pop("fleet", {})
        models = {MODEL: {"tokenizer_directory": str(self.directory)}} if self.directory else {}
        config = RouterConfig.load(
            flags={
                "listen": {"port": 0},
                "fleet": fleet,
                "models": models,
                "observe": {"access_log": False},
                **changes,
            }
        )
        router = Router(config)
        await router.start()
        self.routers.append(router)
        await until(lambda: sum(replica.usable for replica in router.fleet.replicas) == count)
        return router

    async def chat(self, messages: list[dict[str, Any]], router: int = 0, **fields: Any) -> Reply:
        """Send a chat through one of the routers."""
        body = {"model": MODEL, "messages": messages, "max_tokens": 8, **fields}
        url = f"{self.routers[router].address}/v1/chat/completions"
        async with self.session.post(url, json=body) as response:
            raw = await response.read()
            reply = Reply(
                response.status,
                response.headers.get("x-kvring-replica", ""),
                int(response.headers.get("x-kvring-expected-tokens", "0")),
                response.headers.get("x-kvring-tier", ""),
            )
        if response.status == 200:
            answer = json.loads(raw)
            reply.prompt_tokens = answer["usage"]["prompt_tokens"]
            reply.cached_tokens = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            reply.text = answer["choices"][0]["message"]["content"]
        return reply

    async def fresh_digests(self, router: int = 0) -> None:
        """Wait until the router has digests made after this moment."""
        replicas = self.routers[router].fleet.replicas
        for _ in range(2):
            before = [replica.digest_at for replica in replicas]

            def all_newer(before: list[float] = before) -> bool:
                return all(replica.digest_at > at for replica, at in zip(replicas, before, strict=True))

            await until(all_newer)


def echo_options(name: str, directory: Path | None, **changes: Any) -> ReplicaOptions:
    """Options of an echo replica that computes next to nothing in time."""
    echo = {
        "prefill": {"base_seconds": 0.0005, "per_token_seconds": 1e-7, "per_token_context_seconds": 0},
        "decode_seconds": 0.0,
    } | changes.pop("echo", {})
    return ReplicaOptions.load(
        flags={
            "name": name,
            "port": 0,
            "model": MODEL,
            "runner": "echo",
            "model_directory": str(directory or ""),
            "digest_seconds": 0.05,
            "echo": echo,
            **changes,
        }
    )


@asynccontextmanager
async def live_fleet(
    count: int = 3,
    directory: Path | None = None,
    routers: int = 1,
    replica: dict[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[LiveFleet]:
    """Start a fleet; `changes` go to the routers' configuration, `replica` to the replicas' options."""
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        fleet = LiveFleet(session, directory)
        for index in range(count):
            running = await start(echo_options(f"r{index}", directory, **(replica or {})))
            stack.push_async_callback(running.stop)
            fleet.replicas.append(running)
        for _ in range(routers):
            router = await fleet.add_router(**changes)
            stack.push_async_callback(router.stop)
        yield fleet
