"""Streams of vLLM that break off, through a router: a scripted one goes on where another was cut."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router.app import Router
from router.config import RouterConfig
from router.wire.sse import EventCutter
from tests.integration.dying import Seen
from tests.router.engines.scripted_engines import models, vllm_page
from tests.router.engines.scripted_vllm import ScriptedVllm
from tests.router.scripted import until

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
CONTEXT = 200
MESSAGES = [{"role": "user", "content": "hello"}]


class Server:
    """A vLLM on a socket. The next stream breaks off after as many events as the first of `cuts` says."""

    def __init__(self, cuts: list[int]) -> None:
        self._engine = ScriptedVllm(context_tokens=CONTEXT)
        self._cuts = cuts

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Answer an inference request."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        cut = self._cuts.pop(0) if self._cuts else None
        for number, event in enumerate(self._engine.answer(request.path, await request.read())):
            if number == cut:
                assert request.transport is not None
                request.transport.abort()
                break
            await response.write(event)
        return response

    async def get(self, request: web.Request) -> web.Response:
        """Answer what a router asks of it."""
        if request.path == "/v1/models":
            return web.json_response(models("vllm", {"id": "m", "max_model_len": CONTEXT}))
        if request.path == "/metrics":
            return web.Response(text=vllm_page())
        return web.json_response({"version": "0.33.0"}, status=200 if request.path == "/health" else 404)


class Rig:
    """Two servers, a router over them, and a client."""

    def __init__(self, cuts: list[int], router: Router, session: aiohttp.ClientSession) -> None:
        self.cuts = cuts
        self._router = router
        self._session = session

    def output_tokens(self) -> float:
        """How many tokens answers had so far."""
        page = self._router.metrics.render().decode().splitlines()
        return sum(float(line.split()[-1]) for line in page if line.startswith("kvring_output_tokens_total"))

    async def ask(self, path: str, body: dict[str, Any]) -> Seen:
        """Read a stream."""
        seen, cutter = Seen(), EventCutter()
        data = json.dumps({"model": "m", "stream": True, **body}).encode()
        async with self._session.post(self._router.address + path, data=data) as response:
            seen.status = response.status
            try:
                async for chunk in response.content.iter_any():
                    seen.events += cutter.feed(chunk)
            except aiohttp.ClientPayloadError:
                seen.clean = False
        return seen


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        cuts: list[int] = []
        replicas = []
        for name in ("v0", "v1"):
            server = Server(cuts)
            application = web.Application()
            application.router.add_get("/{rest:.*}", server.get)
            application.router.add_post("/{rest:.*}", server.post)
            runner = web.AppRunner(application)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            replicas.append({"name": name, "url": f"http://127.0.0.1:{runner.addresses[0][1]}"})
        flags = {
            "listen": {"port": 0},
            # However often they break off, they are asked again.
            "fleet": {"replicas": replicas, "warming_seconds": 0, "failures_to_suspect": 100},
            "observe": {"access_log": False},
        }
        router = Router(RouterConfig.load(flags=flags))
        await router.start()
        stack.push_async_callback(router.stop)
        await until(lambda: sum(one.usable for one in router.fleet.replicas) == 2)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Rig(cuts, router, session)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": MESSAGES, "max_tokens": 40, "stream_options": {"include_usage": True}}),
        (CHAT, {"messages": MESSAGES, "temperature": 0}),
        (COMPLETION, {"prompt": "once", "max_tokens": 30, "stream_options": {"include_usage": True}}),
    ],
)
async def test_another_goes_on(path: str, body: dict[str, Any]) -> None:
    async with rig() as fleet:
        whole = (await fleet.ask(path, body)).whole()
        for cut in (0, 1, 2, 9, 20):
            fleet.cuts.append(cut)
            assert (await fleet.ask(path, body)).whole() == whole, cut
            assert not fleet.cuts


async def test_tokens_count_where_only_the_usage_was_missing() -> None:
    body = {"messages": MESSAGES, "max_tokens": 8, "stream_options": {"include_usage": True}}
    async with rig() as fleet:
        whole = await fleet.ask(CHAT, body)
        counted = fleet.output_tokens()
        assert counted == whole.chunks[-1]["usage"]["completion_tokens"]
        # All but the last two: usage, and that this was the end.
        fleet.cuts.append(len(whole.events) - 2)
        assert (await fleet.ask(CHAT, body)).whole() == whole.whole()
        assert not fleet.cuts
        assert fleet.output_tokens() == 2 * counted


async def test_stop_strings_end_in_an_error() -> None:
    async with rig() as fleet:
        fleet.cuts.append(6)
        seen = await fleet.ask(CHAT, {"messages": MESSAGES, "max_tokens": 40, "stop": ["zzz"]})
        assert not seen.clean
        assert seen.error is not None
        assert seen.error["code"] == "replica_lost"
