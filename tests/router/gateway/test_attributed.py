"""Uncached tokens add up whatever replicas tell, and only requests that were served count."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from aiohttp import web

from tests.router.scripted import BODY, Handler, Rig, completion, rig


def telling(**counts: Any) -> Handler:
    """Answers with these counts in its usage."""
    evicted = counts.pop("evicted_tokens", None)
    body = completion(**counts)
    if evicted is not None:
        body["usage"]["prompt_tokens_details"]["evicted_tokens"] = evicted

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(body)

    return answer


async def causes_of(up: Rig) -> dict[str, int]:
    """The uncached tokens of all replicas by cause, checked to be what was asked less what was hit."""
    names = ("cold", "evicted", "routed_by_load", "routed_by_membership", "key_mismatch", "stale_digest")
    causes = {}
    for cause in (*names, "partial_block", "unknown"):
        if tokens := int(await up.metric("kvring_uncached_tokens_total", cause=cause)):
            causes[cause] = tokens
    asked = await up.metric("kvring_prompt_tokens_total")
    assert sum(causes.values()) == asked - await up.metric("kvring_hit_tokens_total")
    return causes


async def test_hits_that_nobody_tells_leave_all_unknown() -> None:
    async with rig(1) as up:
        up.replicas[0].answer = telling(cached_tokens=None)
        await up.post()
        assert await causes_of(up) == {"unknown": 40}
        assert await up.metric("kvring_hit_unreported_total") == 1


async def test_more_hits_than_prompt_count_as_the_prompt() -> None:
    async with rig(1) as up:
        up.replicas[0].answer = telling(prompt_tokens=40, cached_tokens=64)
        await up.post()
        assert await causes_of(up) == {}
        assert await up.metric("kvring_hit_tokens_total") == 40


async def test_evictions_are_told_by_the_replica_and_no_hit_is_new() -> None:
    async with rig(1) as up:
        up.replicas[0].answer = telling(prompt_tokens=65, cached_tokens=16, evicted_tokens=32)
        await up.post()
        assert await causes_of(up) == {"evicted": 32, "cold": 16, "partial_block": 1}


@pytest.mark.parametrize("evicted", [-1, True, "many", 2**70, None])
async def test_nonsense_in_the_usage_costs_nothing(evicted: object) -> None:
    async with rig(1) as up:
        up.replicas[0].answer = telling(prompt_tokens=65, cached_tokens=16, evicted_tokens=evicted)
        status, _, _ = await up.post()
        assert status == 200
        await causes_of(up)


async def test_several_prompts_in_one_request_are_not_guessed_at() -> None:
    async with rig(1) as up:
        up.replicas[0].answer = telling(prompt_tokens=100, cached_tokens=32)
        await up.post({"model": "m", "prompt": ["one " * 40, "two " * 40]}, "/v1/completions")
        assert await causes_of(up) == {"unknown": 64, "partial_block": 4}


async def test_a_holder_that_died_is_why_not_the_load() -> None:
    async with rig(2) as up:
        for replica in up.replicas:
            replica.answer = telling(prompt_tokens=40, cached_tokens=0, evicted_tokens=0)
        _, _, first = await up.post()
        await up.replica(first.headers["x-kvring-replica"]).stop()
        status, _, second = await up.post()
        assert status == 200
        assert second.headers["x-kvring-replica"] != first.headers["x-kvring-replica"]
        assert await causes_of(up) == {"cold": 32, "routed_by_membership": 32, "partial_block": 16}


async def test_what_was_not_served_does_not_count() -> None:
    async with rig(1) as up:

        async def failing(request: web.Request) -> web.Response:
            return web.json_response(completion(), status=int(request.headers["x-want"]))

        up.replicas[0].answer = failing
        for status in ("500", "503", "400"):
            await up.post(headers={"Content-Type": "application/json", "x-want": status})
        assert await causes_of(up) == {}
        assert await up.metric("kvring_prompt_tokens_total") == 0


async def test_the_access_log_tells_the_causes(caplog: pytest.LogCaptureFixture) -> None:
    async with rig(1, observe={"access_log": True}) as up:
        up.replicas[0].answer = telling(prompt_tokens=65, cached_tokens=16, evicted_tokens=32)
        with caplog.at_level(logging.INFO, "kvring.access"):
            await up.post()
            await up.post(BODY | {"messages": []})
        served, refused = caplog.messages
        assert " hit_tokens=16 misses=partial_block:1,evicted:32,cold:16 " in served
        assert " misses=- " in refused
