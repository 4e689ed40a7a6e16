"""A proxy that holds streams back, and one that does not, in front of a real router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from loadgen.doctor.evidence import Evidence, StreamSeen, Trial
from loadgen.doctor.probe import try_model
from tests.integration.fleets import live_fleet
from tests.loadgen.doctor.patient import NOTE, WARNING, WRONG, diagnose, look, serving, severities, verdict
from tests.loadgen.scripted import stream, whole


@asynccontextmanager
async def proxy(target: str, buffers: bool) -> AsyncIterator[str]:
    """Pass chats on, whole or as they come."""
    async with aiohttp.ClientSession() as session:

        async def chat(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            async with session.post(target + request.path, data=body, headers=_JSON) as answer:
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                if buffers:
                    held = await answer.read()
                    await response.prepare(request)
                    await response.write(held)
                    return response
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                return response

        async with serving(web.post("/v1/chat/completions", chat), web.get("/v1/models", _models)) as url:
            yield url


_JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(("buffers", "found"), [(True, [WRONG]), (False, [])])
async def test_a_proxy_in_front_of_the_router(buffers: bool, found: list[str]) -> None:
    async with live_fleet(1, replica={"echo": {"decode_seconds": 0.01}}) as fleet:
        router = fleet.routers[0].address
        async with proxy(router, buffers) as public:
            diagnosis = await diagnose(url=router, api_url=public, probe=True)
        told = verdict(diagnosis, "streams")
        assert told.looked
        assert severities(told) == found
        for finding in told.findings:
            assert router in finding.title
            assert "proxy_buffering off" in finding.mend
        counted = await diagnose(url=router)
    # Three requests at most, told beforehand.
    sent = verdict(counted, "cached_tokens").seen
    assert sent.startswith("3 answers" if buffers else "2 answers")


async def test_a_proxy_with_nothing_to_compare_with() -> None:
    async with (
        live_fleet(1, replica={"echo": {"decode_seconds": 0.01}}) as fleet,
        proxy(fleet.routers[0].address, buffers=True) as public,
    ):
        diagnosis = await diagnose(api_url=public, probe=True)
    assert severities(verdict(diagnosis, "streams")) == [WARNING]


async def test_a_request_that_fails() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response(
            {"error": {"message": f"not {request.headers['Authorization']}"}}, status=401
        )

    async with serving(web.post("/v1/chat/completions", refuse), web.get("/v1/models", _models)) as url:
        told = verdict(await diagnose(api_url=url, probe=True, api_key="hunter2"), "streams")
    assert severities(told) == [WRONG]
    assert "http_401" in told.findings[0].seen
    assert "--api-key" in told.findings[0].mend
    # The server repeated it.
    assert "Bearer ***" in told.findings[0].seen


async def test_one_slow_start_is_no_reason_for_a_third_request() -> None:
    sent: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        sent.append(request.host)
        await asyncio.sleep(0.2 if len(sent) == 1 else 0)
        return await stream(request, whole(*"abcdefghijkl"), gap_seconds=0 if len(sent) == 1 else 0.01)

    async with serving(web.post("/v1/chat/completions", answer)) as url:
        trial = await try_model(url, "m", None, url.replace("127.0.0.1", "localhost"))
    assert trial.first.at_once
    assert trial.direct is None
    assert len(sent) == 2


def of(total: float, spread: float, tokens: int = 40) -> StreamSeen:
    return StreamSeen("http://there", answer_tokens=tokens, first_seconds=total - spread, total_seconds=total)


@pytest.mark.parametrize(
    ("trial", "found"),
    [
        # A long queue before a fast answer: the second time shows it.
        (Trial("m", of(2.0, 0.1), of(0.2, 0.1)), []),
        (Trial("m", of(2.0, 0.01), of(2.0, 0.01), of(2.0, 1.5)), [WRONG]),
        (Trial("m", of(2.0, 0.01), of(2.0, 0.01), of(2.0, 0.01)), [WARNING]),
        (Trial("m", of(0.2, 0.001), of(0.2, 0.001), of(0.2, 0.001)), [NOTE]),
        (Trial("m", of(2.0, 0.01, 3), of(2.0, 0.01, 3)), []),
        (Trial("m", of(0.05, 0.0), of(0.05, 0.0)), []),
    ],
)
def test_what_times_tell(trial: Trial, found: list[str]) -> None:
    assert severities(look(Evidence(trials=(trial,)), "streams")) == found


async def test_nothing_is_sent_unless_asked_for() -> None:
    asked: list[str] = []

    async def count(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        await asyncio.sleep(0)
        return await stream(request, whole("a"))

    async with serving(web.post("/v1/chat/completions", count)) as url:
        told = verdict(await diagnose(url=url, api_url=url), "streams")
    assert not told.looked
    assert not asked


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "m"}]})
