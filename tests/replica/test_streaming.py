"""Streams: OpenAI's events in OpenAI's order, sent as soon as there is something to send."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI

from router.wire.sse import DONE, EventCutter, event_data
from tests.replica.conftest import Client, Launch

SLOW = {"prefill": {"base_seconds": 0.2, "per_token_seconds": 1e-7, "per_token_context_seconds": 0}}


async def events_of(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Post a streaming request; return its events but the last, which must be [DONE]."""
    cutter = EventCutter()
    async with client.http.stream("POST", path, json={"model": "m", "stream": True, **body}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "no-cache" in response.headers["cache-control"]
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in response.headers
        events = [event async for chunk in response.aiter_raw() for event in cutter.feed(chunk)]
    assert cutter.rest() == b""
    assert events.pop() == DONE
    return [orjson.loads(event_data(event) or b"") for event in events]


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, **fields}


async def test_a_chat_stream_opens_with_the_role_and_ends_with_the_reason(launch: Launch) -> None:
    client = await launch()
    events = await events_of(client, "/v1/chat/completions", chat())
    assert len({event["id"] for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    choices = [event["choices"][0] for event in events]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "The quick brown fox "
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert all("usage" not in event for event in events)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True, "x": 1}, True)],
)
async def test_usage_comes_only_when_asked(launch: Launch, options: object, wanted: bool) -> None:
    client = await launch()
    events = await events_of(client, "/v1/chat/completions", chat(stream_options=options))
    last = events[-1]
    assert (last["choices"] == []) == wanted
    if wanted:
        assert last["usage"]["completion_tokens"] == 5
        assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0, "evicted_tokens": 0}
        assert all(event["usage"] is None for event in events[:-1])


async def test_several_prompts_stream_by_index(launch: Launch) -> None:
    client = await launch()
    body = {"prompt": ["a", "b", "c"], "max_tokens": 6, "stream_options": {"include_usage": True}}
    events = await events_of(client, "/v1/completions", body)
    texts = {0: "", 1: "", 2: ""}
    reasons = {}
    for event in events[:-1]:
        (choice,) = event["choices"]
        assert choice["index"] not in reasons
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            reasons[choice["index"]] = choice["finish_reason"]
    assert set(texts.values()) == {"The quick brown fox jump"}
    assert reasons == {0: "length", 1: "length", 2: "length"}
    assert events[-1]["usage"]["completion_tokens"] == 18


async def test_a_stop_string_is_never_shown_in_part(launch: Launch) -> None:
    client = await launch()
    events = await events_of(client, "/v1/chat/completions", chat(max_tokens=50, stop="own fox"))
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == "The quick br"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    await client.idle()


async def test_characters_stay_whole(launch: Launch) -> None:
    client = await launch(echo={"filler": "a€b😀c漢字"})
    events = await events_of(client, "/v1/chat/completions", chat(max_tokens=20))
    pieces = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "�" not in "".join(pieces)
    assert "".join(pieces).startswith("a€b😀c漢字")


async def test_headers_come_before_the_first_token(launch: Launch) -> None:
    client = await launch(echo=SLOW)
    body = {"model": "m", "stream": True, **chat()}
    async with client.http.stream("POST", "/v1/chat/completions", json=body) as response:
        # The prefill still runs: nothing has been sampled.
        assert await client.metric("vllm:generation_tokens_total") == 0
        assert response.status_code == 200
        await response.aread()
    assert await client.metric("vllm:generation_tokens_total") == 5


async def test_the_openai_client_reads_it(launch: Launch) -> None:
    client = await launch()
    async with AsyncOpenAI(base_url=f"{client.replica.url}/v1", api_key="none", max_retries=0) as openai:
        stream = await openai.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], max_tokens=5, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == "The quick brown fox "
        answer = await openai.completions.create(model="m", prompt=["a", "b"], max_tokens=2)
        assert [choice.text for choice in answer.choices] == ["The quic"] * 2


async def test_errors_before_the_stream_are_plain(launch: Launch) -> None:
    client = await launch()
    response = await client.chat("x", model="other", stream=True)
    assert response.status_code == 404
    assert response.headers["content-type"].startswith("application/json")


async def test_many_streams_at_once_all_end_whole(launch: Launch) -> None:
    client = await launch()
    results = await asyncio.gather(
        *(events_of(client, "/v1/completions", {"prompt": [n], "max_tokens": 8}) for n in range(40))
    )
    for events in results:
        assert "".join(event["choices"][0]["text"] for event in events) == "The quick brown fox jumps over t"
    state = await client.idle()
    assert state["free_blocks"] == state["block_count"]
