"""A scripted OpenAI-compatible server on a real socket: tests say what bytes it answers, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from loadgen.client import CHAT_PATH

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve(handler: Handler, path: str = CHAT_PATH) -> AsyncIterator[str]:
    """Answer requests to `path` by `handler`, and list one model; gives the address."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post(path, handler)
    app.router.add_get("/v1/models", _models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _models(request: web.Request) -> web.StreamResponse:
    return web.json_response({"object": "list", "data": [{"id": "scripted", "object": "model"}]})


async def stream(
    request: web.Request,
    pieces: Sequence[bytes],
    *,
    replica: str | None = None,
    gap_seconds: float = 0.0,
    cut: bool = False,
) -> web.StreamResponse:
    """Answer an event stream, each piece in a write of its own; `cut` drops the connection at the end."""
    headers = {"Content-Type": "text/event-stream"}
    if replica is not None:
        headers["x-kvring-replica"] = replica
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(gap_seconds)
    if cut and request.transport is not None:
        request.transport.abort()
        return response
    await response.write_eof()
    return response


def event(value: dict[str, Any]) -> bytes:
    """Return one event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def chunk(content: str | None = None, *, role: str | None = None, finish: str | None = None) -> bytes:
    """Return the event of one chat chunk."""
    delta = {name: value for name, value in (("role", role), ("content", content)) if value is not None}
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None})


def usage(prompt: int, cached: int | None, answer: int) -> bytes:
    """Return the event that tells the usage."""
    details = None if cached is None else {"cached_tokens": cached}
    return event(
        {
            "choices": [],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": answer,
                "total_tokens": prompt + answer,
                "prompt_tokens_details": details,
            },
        }
    )


DONE = b"data: [DONE]\n\n"


def whole(*words: str, prompt: int = 100, cached: int | None = 64) -> list[bytes]:
    """Return the events of a whole answer."""
    return [
        chunk("", role="assistant"),
        *(chunk(word) for word in words),
        chunk(finish="stop"),
        usage(prompt, cached, len(words)),
        DONE,
    ]
