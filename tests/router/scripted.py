"""Scripted replicas: small HTTP servers that log what they get and answer as told; and a router over them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
from aiohttp import web

from router.app import Router
from router.chain.chain import ChainIdentity
from router.chain.namer import ChainNamer
from router.config import RouterConfig
from router.wire.report import LONG_SECONDS, ORCA_HEADER, LoadReport, PrefillCost, ReplicaState

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Tell me about the sea. " * 8}],
}


def completion(prompt_tokens: int = 40, cached_tokens: int | None = 16, **usage: Any) -> dict[str, Any]:
    """A plain answer in OpenAI's shape."""
    counts: dict[str, Any] = {"prompt_tokens": prompt_tokens, "completion_tokens": 1, **usage}
    if cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    message = {"role": "assistant", "content": "Salt water."}
    return {
        "id": "x",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": counts,
    }


def chunk(text: str | None, finish: str | None = None, **fields: Any) -> bytes:
    """One streamed event."""
    delta = {} if text is None else {"content": text}
    body = {"id": "x", "object": "chat.completion.chunk", **fields}
    body.setdefault("choices", [{"index": 0, "delta": delta, "finish_reason": finish}])
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


class ScriptedReplica:
    """Logs requests, and answers each POST by `answer` (a handler), or as a plain completion."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.uid = f"{name}-1"
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.answer: Handler | None = None
        # Answers /handover and /prefill; without it there are none.
        self.hand_over: Handler | None = None
        self.state_status = 200
        self.models: tuple[str, ...] = ("m",)
        self.states_asked = 0
        self.work_seconds = 0.0
        self.waiting = 0
        self.draining = False
        self.serving_seconds = LONG_SECONDS
        # Whether answers carry its load.
        self.tells_load = False
        self.identity: ChainIdentity = ChainNamer("sha256", "kvring", 16, None).identity
        self.closed = 0
        self.running = 0
        self._sequence = 0
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self, port: int = 0) -> None:
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_post("/v1/{rest:.*}", self._infer)
        application.router.add_post("/resume/v1/{rest:.*}", self._infer)
        application.router.add_post("/{rest:handover|prefill}", self._hand_over)
        application.router.add_get("/state", self._state)
        application.router.add_get("/digest", self._digest)
        self._runner = web.AppRunner(
            application, handler_cancellation=True, shutdown_timeout=0.1, max_field_size=32 * 1024
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        self.running += 1
        try:
            self.bodies.append(await request.read())
            self.requests.append(request)
            if self.answer is not None:
                return await self.answer(request)
            headers = {ORCA_HEADER: self._report().to_orca()} if self.tells_load else None
            return web.json_response(completion(), headers=headers)
        except asyncio.CancelledError:
            self.closed += 1
            raise
        finally:
            self.running -= 1

    async def _hand_over(self, request: web.Request) -> web.StreamResponse:
        if self.hand_over is None:
            raise web.HTTPNotFound
        return await self.hand_over(request)

    async def _state(self, request: web.Request) -> web.Response:
        self.states_asked += 1
        if self.state_status != 200:
            return web.json_response({}, status=self.state_status)
        return web.json_response(self.state().to_json())

    def state(self) -> ReplicaState:
        """What it tells of itself."""
        return ReplicaState(
            name=self.name,
            uid=self.uid,
            cache_epoch=0,
            models=self.models,
            chain=self.identity,
            load=self._report(),
            prefill=PrefillCost(),
            context_tokens=8192,
            block_count=100,
            free_blocks=100,
            draining=self.draining,
            serving_seconds=self.serving_seconds,
        )

    def _report(self) -> LoadReport:
        self._sequence += 1
        return LoadReport(self.work_seconds, self.running, self.waiting, 0.0, self._sequence)

    async def _digest(self, request: web.Request) -> web.Response:
        return web.json_response({}, status=404)


async def stream(request: web.Request, pieces: list[bytes], pause_seconds: float = 0.0) -> web.StreamResponse:
    """Send an event stream in just these pieces."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(pause_seconds)
    await response.write_eof()
    return response


class Rig:
    """A router over scripted replicas, and a client session for it."""

    def __init__(
        self, router: Router, replicas: list[ScriptedReplica], session: aiohttp.ClientSession
    ) -> None:
        self.router = router
        self.replicas = replicas
        self.session = session

    async def post(
        self, body: Any = None, path: str = "/v1/chat/completions", **options: Any
    ) -> tuple[int, bytes, aiohttp.ClientResponse]:
        """Post JSON (or raw bytes) and read the whole answer."""
        data = body if isinstance(body, bytes) else json.dumps(BODY if body is None else body).encode()
        options.setdefault("headers", {"Content-Type": "application/json"})
        payload = BytesIO(data) if len(data) > 500_000 else data
        async with self.session.post(self.router.address + path, data=payload, **options) as response:
            return response.status, await response.read(), response

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.router.address + path) as response:
            if response.content_type == "application/json":
                return response.status, await response.json()
            return response.status, await response.text()

    async def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels."""
        _, text = await self.get("/metrics")
        total = 0.0
        for line in text.splitlines():
            named = line.startswith(name) and line[len(name)] in " {"
            if named and all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    async def ready(self, count: int) -> None:
        """Wait until so many replicas are usable."""
        await until(lambda: sum(replica.usable for replica in self.router.fleet.replicas) == count)

    def replica(self, name: str) -> ScriptedReplica:
        return next(replica for replica in self.replicas if replica.name == name)


async def until(condition: Callable[[], bool], limit_seconds: float = 10.0) -> None:
    """Wait for a condition; fails after a bound that only a broken program meets."""
    async with asyncio.timeout(limit_seconds):
        while not condition():  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.01)


@asynccontextmanager
async def rig(count: int = 3, **changes: Any) -> AsyncIterator[Rig]:
    """Start `count` replicas and a router. `changes` are sections of the configuration."""
    replicas = [ScriptedReplica(f"r{index}") for index in range(count)]
    for replica in replicas:
        await replica.start()
    fleet = {
        "replicas": [{"name": replica.name, "url": replica.url} for replica in replicas],
        "state_poll_seconds": 0.05,
        "probe_timeout_seconds": 1,
    } | changes.pop("fleet", {})
    config = RouterConfig.load(
        flags={
            "listen": {"port": 0},
            "fleet": fleet,
            "observe": {"access_log": False},
            **changes,
            # Who tests refusals does not wait for them, unless that is the test.
            "limits": {"no_replica_wait_seconds": 0, **changes.get("limits", {})},
        }
    )
    router = Router(config)
    await router.start()
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), auto_decompress=False)
    made = Rig(router, replicas, session)
    try:
        await made.ready(sum(replica.state_status == 200 for replica in replicas))
        yield made
    finally:
        await session.close()
        await router.stop()
        for replica in replicas:
            await replica.stop()
