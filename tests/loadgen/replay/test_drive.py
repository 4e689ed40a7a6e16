"""Driving: by the clock, within a bound, with the trace's lengths; the wait for room counts."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from loadgen.client import COMPLETION_PATH, Answer, Client, ClientLimits
from loadgen.replay.drive import Pace, Replayed, drive
from loadgen.replay.prompts import Prompts
from loadgen.traces.trace import Trace, TraceRequest
from tests.loadgen.replay.scripted import serve, whole
from tests.loadgen.scripted import Handler, stream


def trace(*arrivals: float) -> Trace:
    requests = [TraceRequest(at, 20, 5, (0, number), f"s{number}") for number, at in enumerate(arrivals)]
    return Trace("t", 16, requests)


async def play(handler: Handler, played: Trace, pace: Pace) -> list[Replayed]:
    async with serve(handler) as url, Client(url, ClientLimits(), path=COMPLETION_PATH) as client:
        return await drive(played, Prompts(played), client, "m", pace)


async def test_requests_are_the_traces() -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append({**await request.json(), "session": request.headers.get("x-session-id")})
        return await stream(request, whole("a", prompt=20, cached=16))

    done = await play(answer, trace(5, 5.02, 5.04), Pace())
    assert [one.number for one in done] == [0, 1, 2]
    assert [round(one.due_seconds, 6) for one in done] == [0, 0.02, 0.04]
    assert all(one.sent_seconds >= one.due_seconds - 0.001 for one in done)
    assert [body["session"] for body in bodies] == ["s0", "s1", "s2"]
    for body in bodies:
        assert len(body["prompt"]) == 20
        assert body["prompt"][:16] == bodies[0]["prompt"][:16]
        assert (body["model"], body["max_tokens"], body["ignore_eos"]) == ("m", 5, True)


async def test_answers_are_cut_and_time_is_scaled() -> None:
    limits: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        limits.append((await request.json())["max_tokens"])
        return await stream(request, whole("a"))

    done = await play(answer, trace(0, 1000), Pace(time_scale=50_000, max_output_tokens=3))
    assert [one.due_seconds for one in done] == [0, 0.02]
    assert limits == [3, 3]


async def test_no_more_than_so_many_are_in_flight_and_the_others_wait() -> None:
    here = most = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal here, most
        here += 1
        most = max(most, here)
        await asyncio.sleep(0.02)
        here -= 1
        return await stream(request, whole("a"))

    told: list[int] = []
    played = trace(*[0.0] * 12)
    async with serve(answer) as url, Client(url, ClientLimits(), path=COMPLETION_PATH) as client:
        done = await drive(
            played, Prompts(played), client, "m", Pace(in_flight=3), lambda one: told.append(one.number)
        )
    assert most == 3
    assert sorted(told) == list(range(12))
    # Whoever waited for room waited for the first token, too.
    waits = [one.ttft_seconds for one in done]
    assert all(wait is not None and wait >= one.sent_seconds for wait, one in zip(waits, done, strict=True))
    assert done[-1].sent_seconds >= 0.05


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    arrived: list[float] = []
    release = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        arrived.append(asyncio.get_running_loop().time())
        if len(arrived) == 5:
            release.set()
        await release.wait()
        return await stream(request, whole("a"))

    done = await play(answer, trace(0, 0.01, 0.02, 0.03, 0.04), Pace())
    assert len(done) == 5
    assert all(one.answer.error is None for one in done)


async def test_an_empty_trace_and_failures() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text="later")

    assert await play(refuse, trace(), Pace()) == []
    (failed,) = await play(refuse, trace(0), Pace())
    assert (failed.answer.error, failed.ttft_seconds) == ("http_503", None)


def test_ttft_counts_from_when_it_was_due() -> None:
    answer = Answer(first_token_seconds=0.5)
    assert Replayed(0, 1.0, 3.0, answer).ttft_seconds == 2.5
    assert Replayed(0, 1.0, 0.9999, answer).ttft_seconds == 0.5
