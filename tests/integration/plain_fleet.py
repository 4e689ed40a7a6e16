"""Engines that report nothing, and several routers over them: what is known of load is what routers know."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from pydantic import SecretStr

from router.app import Router
from router.config import RouterConfig
from tests.router.scripted import completion, until

MODEL = "m"


class PlainReplica:
    """Serves one request at a time, for the seconds that its `user` field says, or until `let_go` is set."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = ""
        self.in_flight = 0
        self.most_in_flight = 0
        self.served = 0
        self.let_go = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        application = web.Application()
        application.router.add_get("/health", self._health)
        application.router.add_get("/v1/models", self._models)
        application.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        self.let_go.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if "user" in body:
                async with self._one_at_a_time:
                    await asyncio.sleep(float(body["user"]))
            else:
                await self.let_go.wait()
        finally:
            self.in_flight -= 1
        self.served += 1
        return web.json_response(completion())


class PlainFleet:
    """Plain replicas, routers over them, and clients."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.replicas: list[PlainReplica] = []
        self.routers: list[Router] = []
        self.sent: list[asyncio.Task[int]] = []

    def send(self, router: int, text: str, seconds: float | None = None) -> asyncio.Task[int]:
        """Send a chat, served for so long or until its replica lets go; the task returns the status."""
        task = asyncio.create_task(self._send(router, text, seconds))
        self.sent.append(task)
        return task

    async def _send(self, router: int, text: str, seconds: float | None) -> int:
        body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        if seconds is not None:
            body["user"] = str(seconds)
        url = f"{self.routers[router].address}/v1/chat/completions"
        async with self.session.post(url, data=json.dumps(body)) as response:
            await response.read()
            return response.status

    def in_flight(self) -> list[int]:
        """Requests on each replica now."""
        return [replica.in_flight for replica in self.replicas]

    def known(self, router: int) -> list[int]:
        """The same as one router knows it."""
        by_name = {one.name: one.load.view(0.0).in_flight for one in self.routers[router].fleet.replicas}
        return [by_name[replica.name] for replica in self.replicas]

    async def all_known(self) -> None:
        """Wait until every router knows what every replica has."""
        await until(lambda: all(self.known(n) == self.in_flight() for n in range(len(self.routers))))

    async def let_all_go(self) -> list[int]:
        """End what is held; return all statuses."""
        for replica in self.replicas:
            replica.let_go.set()
        return await asyncio.gather(*self.sent)


@asynccontextmanager
async def plain_fleet(
    replicas: int,
    routers: int,
    redis: SecretStr | None = None,
    publish_seconds: float = 0.02,
    **changes: Any,
) -> AsyncIterator[PlainFleet]:
    """Start a fleet whose routers share load where there is a Redis; `changes` are sections of options."""
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        fleet = PlainFleet(session)
        for number in range(replicas):
            replica = PlainReplica(f"r{number}")
            await replica.start()
            stack.push_async_callback(replica.stop)
            fleet.replicas.append(replica)
        if redis is not None:
            shared = {"publish_seconds": publish_seconds, "expire_seconds": 1}
            changes["redis"] = {"url": redis.get_secret_value(), **shared}
        for _ in range(routers):
            router = Router(_config(fleet.replicas, changes))
            await router.start()
            stack.push_async_callback(router.stop)
            fleet.routers.append(router)
        await until(lambda: all(r.fleet.routable_count == replicas for r in fleet.routers))
        yield fleet


def _config(replicas: list[PlainReplica], changes: dict[str, Any]) -> RouterConfig:
    listed = {
        "replicas": [{"name": replica.name, "url": replica.url} for replica in replicas],
        "engine": "plain",
        "state_poll_seconds": 0.1,
        "warming_seconds": 0,
    }
    return RouterConfig.load(
        flags={"listen": {"port": 0}, "fleet": listed, "observe": {"access_log": False}, **changes}
    )
