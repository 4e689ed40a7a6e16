"""Scripted servers with a cache of their own, by API: what they have seen of a prompt, they say is cached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from aiohttp import web

Usage = Callable[[int, int], dict[str, Any]]
"""From the tokens of a prompt and those cached to the usage that is answered."""


def openai_usage(total: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": total,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def anthropic_usage(total: int, cached: int) -> dict[str, Any]:
    written = (total - cached) // 2
    return {
        "input_tokens": total - cached - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": 2,
    }


class CachingServer:
    """Answers in both shapes. A token is a character of the prompt; all seen prompts are remembered."""

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.remembers = True
        self._seen: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append((request.path, body, dict(request.headers)))
        prompt = _prompt(body)
        cached = max((_common(prompt, seen) for seen in self._seen), default=0)
        if self.remembers:
            self._seen.append(prompt)
        answered: dict[str, Any] = {"usage": self.usage(len(prompt), min(cached, len(prompt) - 1))}
        if request.path == "/v1/messages":
            answered["content"] = [{"type": "text", "text": "Salt water."}]
        else:
            answered["choices"] = [{"message": {"role": "assistant", "content": "Salt water."}}]
        return web.json_response(answered)


def _prompt(body: dict[str, Any]) -> str:
    turns = [("system", body["system"])] if "system" in body else []
    turns += [(message["role"], message["content"]) for message in body.get("messages", ())]
    turns += [("text", body["prompt"])] if "prompt" in body else []
    salt = body.get("cache_salt", "")
    return f"{salt}\n" + "".join(f"{role}: {_text(content)}\n" for role, content in turns)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _common(one: str, other: str) -> int:
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


@contextmanager
def serve(server: CachingServer) -> Iterator[str]:
    """Serve from a thread of its own; gives the address. The command under test has the main thread."""
    ready = Event()
    stop = asyncio.Event()
    urls: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/{rest:.*}", server.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        loops.append(asyncio.get_running_loop())
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield urls[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()
