"""The relay: bytes pass as they are, and what they tell is counted."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest
from aiohttp import web

from tests.router.gateway.relayed import EVENTS, STREAM, answering, cut
from tests.router.scripted import chunk, completion, rig, stream


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
async def test_a_stream_passes_byte_for_byte(line_end: bytes) -> None:
    body = b": hello" + b"\n\n" + b"".join(EVENTS).replace(b"data: ", b"data:", 3)
    body = body.replace(b"data: [DONE]", b"event: end\nid: 7\ndata: [DONE]").replace(b"\n", line_end)
    async with rig(1) as up:
        for seed in range(5):
            up.replicas[0].answer = lambda request, seed=seed: stream(request, cut(body, seed))
            status, received, response = await up.post(STREAM)
            assert status == 200
            assert sha256(received).hexdigest() == sha256(body).hexdigest()
            assert response.headers["Content-Type"] == "text/event-stream"
            assert response.headers["Cache-Control"] == "no-cache"
            assert response.headers["X-Accel-Buffering"] == "no"
            assert "Content-Encoding" not in response.headers


@pytest.mark.parametrize(
    ("options", "asked", "shown"),
    [
        ("absent", True, False),
        ({}, True, False),
        ({"include_usage": False}, True, False),
        ({"include_usage": True}, False, True),
        (None, True, False),
    ],
)
async def test_usage_is_counted_and_shown_only_to_who_asked(
    options: object, asked: bool, shown: bool
) -> None:
    usage = chunk(None, choices=[], usage=completion()["usage"])
    events = [*EVENTS[:-1], usage, EVENTS[-1]]
    async with rig(1) as up:
        up.replicas[0].answer = lambda request: stream(request, cut(b"".join(events), 1))
        body = dict(STREAM) if options == "absent" else {**STREAM, "stream_options": options}
        _, received, _ = await up.post(body)
        sent = json.loads(up.replicas[0].bodies[0])
        assert sent["stream_options"]["include_usage"] is True
        assert received == b"".join(events if shown else EVENTS)
        assert await up.metric("kvring_hit_tokens_total", replica="r0") == 16
        assert await up.metric("kvring_prompt_tokens_total", replica="r0") == 40


@pytest.mark.parametrize("shown", [False, True])
async def test_a_last_event_that_is_cut_short_is_shown_as_any_other(shown: bool) -> None:
    usage = chunk(None, choices=[], usage=completion()["usage"]).rstrip(b"\n")
    async with rig(1) as up:
        up.replicas[0].answer = lambda request: stream(request, [*EVENTS[:-1], usage])
        _, received, _ = await up.post({**STREAM, "stream_options": {"include_usage": shown}})
        assert received == b"".join(EVENTS[:-1]) + (usage if shown else b"")
        assert await up.metric("kvring_hit_tokens_total", replica="r0") == 16


async def test_a_body_passes_byte_for_byte_unless_usage_must_be_asked() -> None:
    raw = (
        b'{ "model":"m",\n "seed": 12345678901234567890123, "x": 1e-7, "messages":[{"role":"user",'
        b'"content":"\xc3\xa9\\u00e9"}], "chat_template_kwargs":{"enable_thinking":false}, "zz":{"a":[1,2]} }'
    )
    streamed = raw.replace(b'"x": 1e-7', b'"stream": true')
    async with rig(1) as up:
        await up.post(raw)
        assert up.replicas[0].bodies == [raw]
        up.replicas[0].answer = lambda request: stream(request, EVENTS)
        await up.post(streamed)
        inserted = b'{"stream_options":{"include_usage":true},"return_token_ids":"answer",'
        assert up.replicas[0].bodies[1] == inserted + streamed[1:]


async def test_counts_are_kept_by_replica() -> None:
    async with rig(1) as up:
        for _ in range(3):
            await up.post()
        up.replicas[0].answer = answering(completion(cached_tokens=None))
        await up.post()
        assert await up.metric("kvring_hit_tokens_total", replica="r0") == 48
        assert await up.metric("kvring_prompt_tokens_total", replica="r0") == 160
        assert await up.metric("kvring_hit_unreported_total", replica="r0") == 1
        assert await up.metric("kvring_requests_total", replica="r0", outcome="ok") == 4
        assert await up.metric("kvring_expected_hit_tokens_total", replica="r0") > 0


async def test_own_headers_name_the_replica_and_can_be_turned_off() -> None:
    async with rig(2) as up:
        _, _, response = await up.post()
        assert response.headers["x-kvring-replica"] in ("r0", "r1")
        assert response.headers["x-kvring-policy"] == "affinity"
        assert response.headers["x-kvring-tier"] == "bytes"
        assert response.headers["x-kvring-expected-tokens"] == "0"
    async with rig(1, observe={"response_headers": False, "access_log": False}) as up:
        _, _, response = await up.post()
        assert not [name for name in response.headers if name.lower().startswith("x-kvring")]
        assert "x-request-id" in response.headers


async def test_a_redirect_is_not_followed() -> None:
    async with rig(1) as up:
        up.replicas[0].answer = answering({}, 302, Location="http://127.0.0.1:9/")
        assert (await up.post())[0] == 502


async def test_an_error_before_the_first_byte_is_a_status_not_a_stream() -> None:
    async with rig(1) as up:
        up.replicas[0].answer = answering({"error": {"message": "too long"}}, 400)
        status, _, response = await up.post(STREAM)
        assert status == 400
        assert response.content_type == "application/json"


async def test_an_error_within_a_stream_passes_and_is_counted() -> None:
    async with rig(1) as up:
        events = [*EVENTS[:4], b'data: {"error":{"message":"out of memory"}}\n\n', b"data: [DONE]\n\n"]
        up.replicas[0].answer = lambda request: stream(request, events)
        _, received, _ = await up.post(STREAM)
        assert received == b"".join(events)
        assert await up.metric("kvring_requests_total", outcome="replica_error") == 1


async def test_a_large_answer_passes_whole() -> None:
    body = json.dumps({"data": "x" * 3_000_000}).encode()
    async with rig(1) as up:

        async def large(request: web.Request) -> web.Response:
            return web.Response(body=body, content_type="application/json")

        up.replicas[0].answer = large
        status, received, _ = await up.post()
        assert (status, received) == (200, body)
