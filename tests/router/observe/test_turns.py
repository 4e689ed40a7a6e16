"""From a request's body to the metrics of its turn, through a whole router."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from aiohttp import web

from router.observe.access import AccessLine
from tests.router.scripted import chunk, completion, rig, stream

_TURNS = "kvring_turn_prompt_tokens_total"


def chat(user_messages: int, **fields: Any) -> dict[str, Any]:
    talk = [{"role": "user", "content": "And then?"}, {"role": "assistant", "content": "The sea."}]
    return {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, *(talk * user_messages)[:-1]],
        **fields,
    }


async def streamed(request: web.Request) -> web.StreamResponse:
    usage = completion(prompt_tokens=40, cached_tokens=16, completion_tokens=5)["usage"]
    return await stream(
        request, [chunk("Salt"), chunk(None, "stop", usage=usage), b"data: [DONE]\n\n"], pause_seconds=0.01
    )


async def test_a_turn_is_counted_by_the_users_messages() -> None:
    async with rig(1) as up:
        for count in (1, 2, 2, 5, 9):
            await up.post(chat(count))
        for turn, requests in (("1", 1), ("2", 2), ("3", 0), ("4-7", 1), ("8+", 1)):
            assert await up.metric(_TURNS, model="m", turn=turn) == 40 * requests
            assert await up.metric("kvring_turn_hit_tokens_total", turn=turn) == 16 * requests


async def test_completions_and_chats_without_a_user_are_no_turn() -> None:
    async with rig(1) as up:
        await up.post({"model": "m", "prompt": "Once"}, path="/v1/completions")
        await up.post({"model": "m", "messages": [{"role": "system", "content": "Be brief."}]})
        assert await up.metric(_TURNS) == 0
        assert await up.metric("kvring_model_requests_total", model="m", outcome="ok") == 2


async def test_a_stream_tells_when_it_began_and_what_its_tokens_took() -> None:
    async with rig(1) as up:
        up.replicas[0].answer = streamed
        await up.post(chat(2, stream=True))
        assert await up.metric("kvring_turn_time_to_first_byte_seconds_count", model="m", turn="2") == 1
        assert await up.metric("kvring_output_tokens_total", model="m") == 5
        assert await up.metric("kvring_time_per_output_token_seconds_count", model="m") == 1


async def test_the_access_log_has_what_is_known_of_each(caplog: pytest.LogCaptureFixture) -> None:
    async with rig(1, observe={"access_log": True}) as up:
        with caplog.at_level(logging.INFO, "kvring.access"):
            await up.post(chat(3), headers={"Content-Type": "application/json", "x-request-id": "id-1"})
            await up.post(chat(1) | {"model": "no\nbody"})
        served, refused = (record.msg for record in caplog.records if isinstance(record.msg, AccessLine))
        told = json.loads(json.dumps(served.fields()))
        assert told["request_id"] == "id-1"
        assert (told["model"], told["turn"], told["status"], told["replica"]) == ("m", 3, 200, "r0")
        assert (told["prompt_tokens"], told["hit_tokens"], told["output_tokens"]) == (40, 16, 1)
        assert sum(told["misses"].values()) == 24
        assert refused.fields()["model"] == "no\nbody"
        assert " model=no%0Abody " in str(refused)


async def test_what_runs_and_what_is_held_is_told() -> None:
    async with rig(1, observe={"access_log": False, "run": "monday"}, policy={"name": "round_robin"}) as up:
        assert await up.metric("kvring_info", run="monday", policy="round_robin") == 1
        held: list[float] = []

        async def ask(request: web.Request) -> web.StreamResponse:
            held.append(await up.metric("kvring_in_flight_requests"))
            return web.json_response(completion())

        up.replicas[0].answer = ask
        await up.post()
        assert held == [1]
        assert await up.metric("kvring_in_flight_requests") == 0
        assert await up.metric("kvring_fleet_replicas", state="ready") == 1
        assert await up.metric("kvring_discovery_up", source="static") == 1
