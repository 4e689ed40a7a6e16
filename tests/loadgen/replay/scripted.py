"""A scripted server of text completions on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tests.loadgen.scripted import DONE, Handler, event, usage


@asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[str]:
    """Answer completions by `handler`, and list one model; gives the address."""

    async def models(request: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/completions", handler)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def piece(text: str, finish: str | None = None) -> bytes:
    """Return the event of one completion chunk."""
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": None})


def whole(*words: str, prompt: int = 100, cached: int | None = 64) -> list[bytes]:
    """Return the events of a whole answer."""
    return [*map(piece, words), piece("", "length"), usage(prompt, cached, len(words)), DONE]
