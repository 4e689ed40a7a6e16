"""The client against scripted servers: what it measures, and how it tells failures apart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import orjson
import pytest
from aiohttp import web

from loadgen.children import free_ports
from loadgen.client import Answer, Client, ClientLimits
from tests.loadgen.scripted import DONE, chunk, event, serve, stream, usage, whole

BODY = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}


async def ask_pieces(pieces: Sequence[bytes], *, gap_seconds: float = 0.0, cut: bool = False) -> Answer:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(request, pieces, replica="replica-7", gap_seconds=gap_seconds, cut=cut)

    async with serve(handler) as url, Client(url) as client:
        return await client.ask(BODY)


async def test_reads_text_usage_and_replica() -> None:
    answer = await ask_pieces(whole("Hello", ", ", "world"))
    assert answer.error is None
    assert answer.text == "Hello, world"
    assert (answer.prompt_tokens, answer.cached_tokens, answer.answer_tokens) == (100, 64, 3)
    assert answer.replica == "replica-7"
    assert answer.first_token_seconds is not None
    assert len(answer.gaps_seconds) == 2
    assert answer.first_token_seconds + sum(answer.gaps_seconds) <= answer.total_seconds


async def test_asks_for_a_stream_with_usage_and_sends_its_key() -> None:
    seen: list[tuple[dict[str, object], str | None]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append((orjson.loads(await request.read()), request.headers.get("Authorization")))
        return await stream(request, whole("a"))

    async with serve(handler) as url, Client(f"{url}/v1/", api_key="secret") as client:
        assert (await client.ask(BODY)).error is None
    assert seen == [
        ({**BODY, "stream": True, "stream_options": {"include_usage": True}}, "Bearer secret"),
    ]


async def test_characters_may_be_cut_anywhere() -> None:
    whole_bytes = b"".join(whole("naïve ", "漢字", "🙂"))
    answer = await ask_pieces([whole_bytes[i : i + 1] for i in range(len(whole_bytes))])
    assert answer.error is None
    assert answer.text == "naïve 漢字🙂"


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
async def test_any_line_end_comments_and_no_space(line_end: bytes) -> None:
    raw = b": keep-alive\n\n" + b"".join(whole("a", "b")).replace(b"data: ", b"data:")
    raw = raw.replace(b"\n", line_end)
    answer = await ask_pieces([raw[:40], raw[40:41], raw[41:]])
    assert (answer.error, answer.text, answer.prompt_tokens) == (None, "ab", 100)


async def test_the_role_alone_is_no_token_but_a_thought_is() -> None:
    thought = event({"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": None}]})
    answer = await ask_pieces([chunk("", role="assistant"), chunk(finish="stop"), usage(5, 0, 0), DONE])
    assert (answer.error, answer.first_token_seconds) == (None, None)
    answer = await ask_pieces([chunk("", role="assistant"), thought, *whole("yes")])
    assert answer.text == "yes"
    assert len(answer.gaps_seconds) == 1


async def test_usage_that_tells_no_cached_tokens() -> None:
    answer = await ask_pieces(whole("a", cached=None))
    assert (answer.error, answer.prompt_tokens, answer.cached_tokens) == (None, 100, None)


async def test_times_follow_the_stream() -> None:
    answer = await ask_pieces(whole("a", "b", "c"), gap_seconds=0.05)
    assert answer.first_token_seconds is not None
    assert answer.first_token_seconds >= 0.05
    assert min(answer.gaps_seconds) > 0
    assert answer.total_seconds >= 0.25


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        (whole("a", "b")[:-1], "truncated"),
        ([chunk("a"), usage(1, 0, 1), DONE], "truncated"),
        ([], "truncated"),
        ([chunk("a"), event({"error": {"message": "replica lost", "code": None}}), DONE], "in_band"),
        ([event({"error": "boom"})], "in_band"),
        ([chunk("a"), b"data: {not json\n\n", DONE], "malformed"),
        ([b"data: [1]\n\n"], "malformed"),
        ([event({"choices": [7]})], "malformed"),
        ([event({"choices": [{"delta": {"content": 7}}]})], "malformed"),
        ([event({"choices": [], "usage": {"prompt_tokens": 1}})], "malformed"),
    ],
)
async def test_streams_that_are_not_whole(pieces: list[bytes], kind: str) -> None:
    answer = await ask_pieces(pieces)
    assert answer.error == kind
    assert answer.message


async def test_a_dropped_connection_keeps_what_came() -> None:
    answer = await ask_pieces([chunk("some")], gap_seconds=0.05, cut=True)
    assert (answer.error, answer.text, answer.replica) == ("disconnected", "some", "replica-7")


@pytest.mark.parametrize("status", [400, 404, 413, 429, 500, 503, 302])
async def test_statuses(status: int) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        body = {"error": {"message": "no", "type": "x", "param": None, "code": None}}
        return web.json_response(body, status=status, headers={"Location": "/v1/models"})

    async with serve(handler) as url, Client(url) as client:
        answer = await client.ask(BODY)
    assert answer.error == f"http_{status}"
    assert '"no"' in answer.message


async def test_a_plain_answer_is_not_a_stream() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"choices": []})

    async with serve(handler) as url, Client(url) as client:
        assert (await client.ask(BODY)).error == "not_a_stream"


async def test_nobody_listens() -> None:
    async with Client(f"http://127.0.0.1:{free_ports(1)[0]}") as client:
        assert (await client.ask(BODY)).error == "connect"


@pytest.mark.parametrize(
    "limits",
    [ClientLimits(idle_seconds=0.1), ClientLimits(total_seconds=0.1)],
    ids=["idle", "total"],
)
async def test_silence_ends(limits: ClientLimits) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(request, [chunk("a"), chunk("b")], gap_seconds=0.7)

    async with serve(handler) as url, Client(url, limits) as client:
        answer = await client.ask(BODY)
    assert (answer.error, answer.text) == ("timeout", "a")


async def test_an_answer_is_whole_at_done_even_if_the_body_never_ends() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(request, whole("a"), gap_seconds=0.01, cut=True)

    async with serve(handler) as url, Client(url) as client:
        assert (await client.ask(BODY)).error is None


async def test_connections_are_used_again_and_without_limit() -> None:
    sockets: list[object] = []
    open_now = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        sockets.append(request.transport)
        if len(sockets) == 150:
            open_now.set()
        await open_now.wait()
        return await stream(request, whole("a"))

    async with serve(handler) as url, Client(url) as client:
        answers = await asyncio.gather(*(client.ask(BODY) for _ in range(150)))
        assert {answer.error for answer in answers} == {None}
        assert len(set(sockets)) == 150
        await client.ask(BODY)
        assert len(set(sockets)) == 150


async def test_a_cancel_closes_the_request() -> None:
    began = asyncio.Event()
    gone = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        began.set()
        try:
            return await stream(request, [chunk("a")] * 1000, gap_seconds=0.01)
        finally:
            gone.set()

    async with serve(handler) as url, Client(url) as client:
        task = asyncio.create_task(client.ask(BODY))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 5)
