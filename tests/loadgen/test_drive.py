"""Whole runs against a scripted server: histories, limits, failures, cancels."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import orjson
import pytest
from aiohttp import web

from loadgen.arrivals import Closed, Open
from loadgen.client import Client
from loadgen.drive import RunLimits, Turn, drive
from loadgen.load import LoadError, first_model, load
from loadgen.load_options import LoadOptions
from loadgen.report import summarise
from loadgen.workloads.multi_turn import MultiTurn
from loadgen.workloads.session import Ask
from loadgen.workloads.shared_prompt import SharedPrompt
from tests.loadgen.scripted import Handler, chunk, serve, stream, whole

CHATS = MultiTurn(Ask("scripted"), turns=3, turn_tokens=20, system_tokens=20)


class Log:
    """Answers each request with its number, and notes bodies and how many were in flight."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.in_flight = 0
        self.most = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(orjson.loads(await request.read()))
        number = len(self.bodies)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            pieces = whole(f"answer {number}")
            return await stream(request, pieces, replica=f"r{number % 2}", gap_seconds=0.002)
        finally:
            self.in_flight -= 1


async def failing(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "full"}}, status=503)


async def test_a_conversation_gets_its_own_answers_back() -> None:
    log = Log()
    seen: list[Turn] = []
    async with serve(log.answer) as url, Client(url) as client:
        run = await drive(CHATS, Closed(4), client, RunLimits(sessions=6), on_turn=seen.append)
    assert len(run.turns) == 18
    assert list(run.turns) == seen
    by_session: dict[str, list[str]] = defaultdict(list)
    for turn in run.turns:
        assert turn.index == len(by_session[turn.session])
        by_session[turn.session].append(turn.answer.text)
    histories = {
        tuple(message["content"] for message in body["messages"] if message["role"] == "assistant")
        for body in log.bodies
    }
    for answers in by_session.values():
        assert tuple(answers[:2]) in histories
    summary = summarise(run)
    assert (summary.errors, summary.requests, summary.prompt_tokens) == (0, 18, 1800)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_closed_concurrency_holds_on_the_wire(concurrency: int) -> None:
    log = Log()
    async with serve(log.answer) as url, Client(url) as client:
        await drive(CHATS, Closed(concurrency, 0.001), client, RunLimits(sessions=5))
    assert 1 <= log.most <= concurrency
    assert len(log.bodies) == 15


@pytest.mark.parametrize("requests", [1, 7, 10])
async def test_the_number_of_requests_is_exact(requests: int) -> None:
    log = Log()
    async with serve(log.answer) as url, Client(url) as client:
        for arrivals in (Closed(4), Open(500.0)):
            run = await drive(CHATS, arrivals, client, RunLimits(requests=requests))
            assert len(run.turns) == requests
    assert len(log.bodies) == 2 * requests


async def test_a_failed_turn_ends_its_session_only() -> None:
    async with serve(failing) as url, Client(url) as client:
        run = await drive(CHATS, Closed(2), client, RunLimits(sessions=5))
    assert [(turn.index, turn.answer.error) for turn in run.turns] == [(0, "http_503")] * 5
    assert summarise(run).errors_by_kind == {"http_503": 5}


async def hang(request: web.Request) -> web.StreamResponse:
    return await stream(request, [chunk("a")] * 100, gap_seconds=0.2)


async def test_time_ends_a_run_and_cuts_what_is_left() -> None:
    async with serve(hang) as url, Client(url) as client, asyncio.timeout(10):
        limits = RunLimits(duration_seconds=0.2, drain_seconds=0.2)
        run = await drive(CHATS, Closed(3), client, limits)
    assert [turn.answer.error for turn in run.turns] == ["unfinished"] * 3


async def test_thinking_users_leave_when_time_is_over() -> None:
    log = Log()
    async with serve(log.answer) as url, Client(url) as client, asyncio.timeout(10):
        run = await drive(CHATS, Closed(3, think_seconds=1e6), client, RunLimits(duration_seconds=0.1))
    assert run.turns == ()


async def test_too_many_sessions_at_once_are_turned_away() -> None:
    async with serve(hang) as url, Client(url) as client, asyncio.timeout(10):
        limits = RunLimits(sessions=10, duration_seconds=0.3, drain_seconds=0.1, in_flight=4)
        run = await drive(SharedPrompt(Ask("m")), Open(1000.0), client, limits)
    assert (run.turned_away, len(run.turns)) == (6, 4)


async def test_a_cancel_ends_all_requests() -> None:
    in_flight = 0
    began = asyncio.Event()
    all_gone = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal in_flight
        in_flight += 1
        began.set()
        try:
            return await hang(request)
        finally:
            in_flight -= 1
            if not in_flight:
                all_gone.set()

    async with serve(handler) as url, Client(url) as client, asyncio.timeout(10):
        task = asyncio.create_task(drive(CHATS, Closed(5), client, RunLimits()))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await all_gone.wait()
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("workload", ["multi_turn", "shared_prompt", "rag"])
@pytest.mark.parametrize("arrival", ["closed", "open"])
async def test_options_make_a_run(workload: str, arrival: str) -> None:
    async with serve(Log().answer) as url:
        values = {"workload": workload, "arrival": arrival, "turns": 2, "document_tokens": 20}
        options = LoadOptions.model_validate(
            {**values, "url": url, "requests": 6, "sessions_per_second": 200, "system_tokens": 20}
        )
        summary = summarise(await load(options))
    assert (summary.requests, summary.errors) == (6, 0)


async def test_the_first_listed_model_is_asked_for() -> None:
    log = Log()
    async with serve(log.answer) as url:
        await load(LoadOptions(url=url, requests=1, turns=1))
    assert log.bodies[0]["model"] == "scripted"


async def test_no_model_to_be_had() -> None:
    handler: Handler = failing
    async with serve(handler) as url:
        with pytest.raises(LoadError, match="--model"):
            await first_model(f"{url}/nowhere")


async def test_sizes_that_do_not_fit_together() -> None:
    options = LoadOptions(workload="rag", documents=5, corpus_documents=4, model="m")
    with pytest.raises(LoadError, match="at least one document"):
        await load(options)
