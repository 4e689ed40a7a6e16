"""The completion client: what it sends, what it measures, and each way in which an answer can fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from loadgen.client import COMPLETION_PATH, Answer, Client, ClientLimits
from loadgen.stream import StreamFault, StreamReader
from tests.loadgen.replay.scripted import piece, serve, whole
from tests.loadgen.scripted import DONE, Handler, event, stream


async def ask(handler: Handler, **limits: float) -> Answer:
    async with serve(handler) as url, Client(url, ClientLimits(**limits), path=COMPLETION_PATH) as client:
        return await client.ask({"model": "m", "prompt": [1, 2]})


async def test_what_is_sent_and_measured() -> None:
    bodies: list[dict[str, Any]] = []
    headers: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        headers.append(dict(request.headers))
        return await stream(request, whole("a", "b"), replica="r1")

    async with serve(answer) as url, Client(f"{url}/v1/", ClientLimits(), "key", COMPLETION_PATH) as client:
        got = await client.ask({"model": "m", "prompt": [1, 2]}, "chat 7")
        await client.ask({"model": "m", "prompt": "x"})
    assert bodies[0] == {
        "model": "m",
        "prompt": [1, 2],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert headers[0]["x-session-id"] == "chat 7"
    assert headers[0]["Authorization"] == "Bearer key"
    assert "x-session-id" not in headers[1]
    assert (got.replica, got.prompt_tokens, got.cached_tokens, got.answer_tokens) == ("r1", 100, 64, 2)
    assert got.error is None
    assert got.first_token_seconds is not None
    assert 0 < got.first_token_seconds <= got.total_seconds


def test_a_token_without_text_came_at_the_end_at_the_latest() -> None:
    reader = StreamReader()
    reader.feed(piece(""), 1.0)
    assert not reader.token_times
    reader.feed(piece("", "length"), 2.0)
    reader.feed(DONE + piece("behind the end"), 3.0)
    reader.finish(9.0)
    assert reader.token_times[0] == 2.0


def test_the_first_text_is_the_first_token() -> None:
    reader = StreamReader()
    for at, data in enumerate(whole("a", "b", cached=None)):
        reader.feed(data, float(at))
    reader.finish(9.0)
    assert reader.token_times[0] == 0.0
    assert (reader.prompt_tokens, reader.cached_tokens) == (100, None)


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([piece("a")], "truncated"),
        ([piece("a"), DONE], "truncated"),
        ([event({"error": {"message": "lost"}})], "in_band"),
        ([b"data: nonsense\n\n"], "malformed"),
        ([b"data: []\n\n"], "malformed"),
        ([event({"choices": [1]})], "malformed"),
        ([event({"choices": [], "usage": {"prompt_tokens": "x"}})], "malformed"),
    ],
)
def test_what_is_no_whole_answer_is_told(events: list[bytes], kind: str) -> None:
    def read() -> None:
        reader = StreamReader()
        reader.feed(b"".join(events), 0.0)
        reader.finish(9.0)

    with pytest.raises(StreamFault) as fault:
        read()
    assert fault.value.kind == kind


async def test_failures_come_back_in_the_answer() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.Response(status=429, text="too many")

    async def plain(request: web.Request) -> web.StreamResponse:
        return web.Response(text="hello")

    async def cut(request: web.Request) -> web.StreamResponse:
        return await stream(request, [piece("a")], replica="r1", cut=True)

    async def dawdle(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return web.Response()

    refused = await ask(refuse)
    assert (refused.error, refused.message) == ("http_429", "too many")
    assert (await ask(plain)).error == "not_a_stream"
    lost = await ask(cut)
    assert (lost.error, lost.replica) == ("disconnected", "r1")
    assert (await ask(dawdle, total_seconds=0.05)).error == "timeout"
    async with Client("http://127.0.0.1:9", ClientLimits(), path=COMPLETION_PATH) as client:
        assert (await client.ask({})).error == "connect"


async def test_a_closed_client_asks_nothing() -> None:
    with pytest.raises(RuntimeError, match="not open"):
        await Client("http://127.0.0.1:9", ClientLimits(), path=COMPLETION_PATH).ask({})
