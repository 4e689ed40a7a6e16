"""The picker behind a real Envoy, configured as the shipped example is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from yarl import URL

from router.wire.report import ORCA_HEADER, LoadReport
from tests.envoy import envoy_or_skip
from tests.router.picker.envoy_config import (
    EXAMPLE,
    Change,
    body_mode,
    duplex,
    duplex_answers,
    fail_closed,
    streamed_answers,
    subset_of,
    without_edge,
)
from tests.router.picker.rig import BLIND, chat, envoy_rig, error_of, picker_rig
from tests.router.scripted import ScriptedReplica, chunk, completion, stream, until

DESTINATION = "x-gateway-destination-endpoint"


@pytest.mark.parametrize("edits", [(), (duplex,)], ids=["buffered", "duplex"])
async def test_a_conversation_stays_and_others_spread(tmp_path: Path, edits: tuple[Change, ...]) -> None:
    async with envoy_rig(tmp_path, *edits) as (rig, front):
        homes = {}
        for topic in ("the sea", "mountains", "deserts", "cities", "rivers", "winds"):
            served = set()
            for turns in (1, 2, 3):
                status, body, response = await rig.post(front, chat(topic, turns))
                assert status == 200
                assert b"Salt water" in body
                served.add(response.headers["x-kvring-replica"])
                assert response.headers["x-kvring-tier"] == "bytes"
            assert len(served) == 1
            homes[topic] = served.pop()
        assert len(set(homes.values())) > 1
        for replica in rig.replicas:
            assert len(replica.requests) == 3 * sum(home == replica.name for home in homes.values())
            for request, raw in zip(replica.requests, replica.bodies, strict=True):
                # What the client sent, and nothing of the picker's doing.
                assert json.loads(raw)["model"] == "m"
                assert "stream_options" not in json.loads(raw)
                assert request.headers["endpoint-load-metrics-format"] == "text"
        await rig.idle()
        assert rig.in_flight() == 0
        assert rig.metric("kvring_requests_total", outcome="ok") == 18


@pytest.mark.parametrize("edits", [(), (duplex,)], ids=["buffered", "duplex"])
async def test_a_large_body_arrives_as_it_was_sent(tmp_path: Path, edits: tuple[Change, ...]) -> None:
    async with envoy_rig(tmp_path, *edits, count=1) as (rig, front):
        sent = json.dumps(chat("the sea", 600)).encode()
        assert len(sent) > 500_000
        status, _, _ = await rig.post(front, sent)
        assert status == 200
        assert rig.replicas[0].bodies == [sent]


async def test_a_client_cannot_say_where_it_goes(tmp_path: Path) -> None:
    stranger = ScriptedReplica("stranger")
    await stranger.start()
    try:
        await _try_to_steer(tmp_path, stranger)
    finally:
        await stranger.stop()
    assert stranger.requests == []


async def _try_to_steer(tmp_path: Path, stranger: ScriptedReplica) -> None:
    address = stranger.url.removeprefix("http://")
    for edits, counted in (((), 0), ((without_edge,), 12), ((without_edge, duplex), 12)):
        async with envoy_rig(tmp_path, *edits) as (rig, front):
            for target in (address, rig.address(2)):
                steering = {
                    DESTINATION: target,
                    f"{DESTINATION}-subset": target,
                    "X-KVRing-Replica": "r2",
                    "x-gateway-inference-objective": "cheap",
                    "x-llm-d-priority": "7",
                }
                served = set()
                for _ in range(2):
                    _, _, response = await rig.post(front, chat("the sea"), headers=steering)
                    assert response.status == 200
                    served.add(response.headers["x-kvring-replica"])
                assert len(served) == 1
                home = next(one for one in rig.replicas if one.name == served.copy().pop())
                got = home.requests[-1].headers
                assert got.getall(DESTINATION)[0].split(",")[0] == home.url.removeprefix("http://")
                assert len(got.getall(DESTINATION)) == 1
                assert f"{DESTINATION}-subset" not in got
                assert "x-kvring-replica" not in got
                assert got["x-gateway-inference-objective"] == "cheap"
                assert got["x-llm-d-priority"] == "7"
            spoofed = rig.metric("kvring_picker_spoofed_headers_total")
            # The edge took out two of three, of each of the four requests.
            assert spoofed == (counted or 4)
            if not counted:
                await rig.picker.stop()
                headers = {DESTINATION: rig.address(2)}
                for _ in range(6):
                    await rig.post(front, chat("the sea"), headers=headers)
                # Not obeyed either where nobody overwrites it.
                assert min(rig.served()) > 0


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_only_the_api_of_replicas_is_within_reach(tmp_path: Path, method: str) -> None:
    async with envoy_rig(tmp_path, count=1) as (rig, front):
        disguised = [f"/v1/..{path}" for path in _PRIVATE]
        for path in (*_PRIVATE, *disguised, "/v1/%2e%2e/state", "/v1//../../state"):
            async with rig.session.request(method, URL(front.url + path, encoded=True)) as response:
                assert response.status == 404, path
                assert response.content_type == "application/json"
                assert error_of(await response.read())["code"] == "not_found"
        assert await front.statistic("cluster.picker.upstream_rq_total") == 0
        async with rig.session.request(method, URL(f"{front.url}/v1/..%2fstate", encoded=True)) as response:
            assert response.status == 400
        assert await front.statistic("cluster.replicas.upstream_rq_total") == 0
        status, _, _ = await rig.post(front, chat("the sea"))
        assert status == 200
        assert await front.statistic("cluster.replicas.upstream_rq_total") == 1


# What replicas and engines serve beside the API.
_PRIVATE = (
    "/",
    "/v1",
    "/state",
    "/digest",
    "/metrics",
    "/health",
    "/handover",
    "/reset_prefix_cache",
    "/sleep",
    "/server_info",
    "/V1/models",
    "//state",
)


async def test_a_subset_restricts_the_choice(tmp_path: Path) -> None:
    allowed: list[str] = []

    def hint(config: dict[str, Any]) -> None:
        subset_of(*allowed)(config)

    async with picker_rig() as rig:
        allowed[:] = [rig.address(1), "10.0.0.1:8000"]
        async with rig.envoy(tmp_path, hint) as front:
            for number in range(5):
                status, _, response = await rig.post(front, chat(f"theme {number}"))
                assert (status, response.headers["x-kvring-replica"]) == (200, "r1")
        allowed[:] = ["10.0.0.1:8000"]
        async with rig.envoy(tmp_path, hint) as front:
            status, body, response = await rig.post(front, chat("the sea"))
            assert status == 503
            assert error_of(body)["code"] == "no_replica"
            assert response.headers["Retry-After"] == "2"
        await rig.idle()
        assert rig.metric("kvring_refusals_total", status="503") == 1


@pytest.mark.parametrize("edits", [(), (duplex,)], ids=["buffered", "duplex"])
async def test_bad_requests_are_answered_as_the_router_does(
    tmp_path: Path, edits: tuple[Change, ...]
) -> None:
    limits = {"body_bytes": 2048, "body_seconds": 0.3}
    async with envoy_rig(tmp_path, *edits, fail_closed, limits=limits) as (rig, front):
        for body, expected, code in (
            (b"{", 400, "invalid_json"),
            (b"[]", 400, "invalid_json"),
            (b"", 400, "invalid_json"),
            ({"model": "m"}, 400, None),
            (chat("x") | {"model": "nobody's"}, 404, "model_not_found"),
            (chat("the sea", 3), 413, "request_too_large"),
        ):
            status, raw, response = await rig.post(front, body)
            assert (status, error_of(raw)["code"]) == (expected, code)
            assert response.content_type == "application/json"
            assert response.headers["x-request-id"]

        async def unsized() -> Any:
            for _ in range(3):
                yield b" " * 1024

        async def slow() -> Any:
            yield b'{"model":'
            await asyncio.sleep(5)

        for pieces, expected in ((unsized(), 413), (slow(), 408)):
            async with rig.session.post(f"{front.url}/v1/chat/completions", data=pieces) as response:
                assert response.status == expected
                assert error_of(await response.read())
        assert sum(rig.served()) == 0
        await rig.idle()
        assert rig.metric("kvring_refusals_total") == 8


async def test_more_streams_than_allowed_are_shed(tmp_path: Path) -> None:
    async with envoy_rig(tmp_path, count=1, picker={"streams": 2}) as (rig, front):
        free = asyncio.Event()

        async def wait(request: web.Request) -> web.Response:
            await free.wait()
            return web.json_response(completion())

        rig.replicas[0].answer = wait
        held = [asyncio.create_task(rig.post(front, chat("the sea"))) for _ in range(2)]
        await until(lambda: rig.replicas[0].running == 2)
        status, body, response = await rig.post(front, chat("the sea"))
        assert (status, error_of(body)["type"]) == (429, "rate_limit_error")
        assert response.headers["Retry-After"] == "1"
        assert rig.in_flight() == 2
        free.set()
        assert [(await task)[0] for task in held] == [200, 200]
        assert rig.metric("kvring_shed_total", reason="streams") == 1
        await rig.idle()
        assert rig.in_flight() == 0


@pytest.mark.parametrize(
    ("edits", "seen_by_picker"),
    [((), False), ((duplex,), False), ((streamed_answers,), False), ((duplex_answers,), True)],
    ids=["buffered", "duplex", "answers-too", "answers-to-and-fro"],
)
async def test_streams_are_not_held_back(
    tmp_path: Path, edits: tuple[Change, ...], seen_by_picker: bool
) -> None:
    async with envoy_rig(tmp_path, *edits, count=1) as (rig, front):
        seen = [asyncio.Event() for _ in range(4)]

        async def talk(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for number, event in enumerate(seen):
                await response.write(chunk(f"{number}"))
                # Not before the client has seen this piece.
                await event.wait()
            await response.write(b"data: [DONE]\n\n")
            return response

        rig.replicas[0].answer = talk
        body = json.dumps(chat("the sea", stream=True)).encode()
        got = b""
        async with asyncio.timeout(10):
            async with rig.session.post(f"{front.url}/v1/chat/completions", data=body) as response:
                assert response.headers["x-kvring-replica"] == "r0"
                for number, event in enumerate(seen):
                    while f'"content": "{number}"'.encode() not in got:
                        got += await response.content.readany()
                    event.set()
                got += await response.content.read()
        assert got == b"".join(chunk(f"{number}") for number in range(4)) + b"data: [DONE]\n\n"
        await rig.idle()
        assert rig.in_flight() == 0
        assert (rig.metric("kvring_picker_answer_chunks_total") > 0) == seen_by_picker


async def test_a_client_that_leaves_is_let_go(tmp_path: Path) -> None:
    async with envoy_rig(tmp_path, count=1) as (rig, front):

        async def forever(request: web.Request) -> web.StreamResponse:
            if b'"stream": true' in rig.replicas[0].bodies[-1]:
                return await stream(request, [chunk("word")] * 1000, 0.01)
            await asyncio.sleep(60)
            return web.Response()

        rig.replicas[0].answer = forever
        for streamed in (False, True):
            body = json.dumps(chat("the sea", stream=streamed)).encode()
            posted = asyncio.create_task(rig.session.post(f"{front.url}/v1/chat/completions", data=body))
            await until(lambda: rig.replicas[0].running == 1)
            assert rig.in_flight() == 1
            if streamed:
                (await posted).close()
            posted.cancel()
            await until(lambda: rig.replicas[0].running == 0)
            await rig.idle()
            assert rig.in_flight() == 0
        assert rig.replicas[0].closed == 2
        assert rig.metric("kvring_requests_total", outcome="client_closed") == 1


async def test_fifty_at_once(tmp_path: Path) -> None:
    async with envoy_rig(tmp_path) as (rig, front):

        async def ask(number: int) -> tuple[int, bytes]:
            status, body, _ = await rig.post(front, chat(f"theme {number}"))
            return status, body

        for status, body in await asyncio.gather(*(ask(number) for number in range(50))):
            assert (status, b"Salt water" in body) == (200, True)
        assert sum(rig.served()) == 50
        assert min(rig.served()) > 5
        await rig.idle()
        assert rig.in_flight() == 0


async def test_what_has_no_prompt_goes_where_it_can_be_answered(tmp_path: Path) -> None:
    async with envoy_rig(tmp_path, fleet=BLIND) as (rig, front):
        rig.replicas[1].answer = rig.replicas[2].answer = _embed
        for replica in rig.picker.core.fleet.replicas:
            if replica.name == "r0":
                replica.health.unreachable()
        for _ in range(4):
            status, _, response = await rig.post(front, {"model": "m", "input": "x"}, "/v1/embeddings")
            assert status == 200
            assert response.headers["x-kvring-replica"] in ("r1", "r2")
        status, body, _ = await rig.post(front, {"model": "nobody's", "input": "x"}, "/v1/embeddings")
        assert (status, error_of(body)["code"]) == (404, "model_not_found")
        status, _, _ = await rig.post(front, b"RIFF\xff\xfe", "/v1/audio/transcriptions")
        assert status == 200
        async with rig.session.get(f"{front.url}/v1/models") as response:
            # Scripted replicas know no such path: what counts is that one of those that live was asked.
            assert response.headers["x-kvring-replica"] in ("r1", "r2")
        assert rig.served()[0] == 0
        await rig.idle()
        assert rig.in_flight() == 0


async def _embed(request: web.Request) -> web.Response:
    return web.json_response({"data": []})


async def test_a_gateway_that_keeps_bodies_to_itself_is_served_by_load(tmp_path: Path) -> None:
    async with picker_rig() as rig:
        for mode in ("NONE", "STREAMED"):
            async with rig.envoy(tmp_path, body_mode(mode)) as front:
                for _ in range(6):
                    status, _, _ = await rig.post(front, chat("the sea"))
                    assert status == 200
        assert sum(rig.served()) == 12


async def test_load_rides_on_answers_and_goes_no_further(tmp_path: Path) -> None:
    async with envoy_rig(tmp_path, count=1, fleet=BLIND) as (rig, front):

        async def loaded(request: web.Request) -> web.Response:
            report = LoadReport(7.5, 3, 2, 0.5, sequence=1000)
            return web.json_response(
                completion(), headers={ORCA_HEADER: report.to_orca(), "x-kvring-ran": "true"}
            )

        rig.replicas[0].answer = loaded
        _, _, response = await rig.post(front, chat("the sea"))
        assert ORCA_HEADER not in response.headers
        assert "x-kvring-ran" not in response.headers
        assert rig.picker.core.fleet.replicas[0].load.work_seconds == 7.5


async def test_answers_tell_nothing_of_the_fleet_where_that_is_off(tmp_path: Path) -> None:
    quiet = {"response_headers": False, "access_log": False}
    async with envoy_rig(tmp_path, count=1, observe=quiet) as (rig, front):
        _, _, response = await rig.post(front, chat("the sea"), headers={"x-request-id": "mine"})
        assert not [name for name in response.headers if name.lower().startswith("x-kvring-")]
        assert response.headers["x-request-id"] == rig.replicas[0].requests[0].headers["x-request-id"]


async def test_the_example_is_valid_as_it_is_shipped() -> None:
    checked = await asyncio.create_subprocess_exec(
        str(envoy_or_skip()), "--mode", "validate", "-c", str(EXAMPLE), stderr=asyncio.subprocess.PIPE
    )
    _, said = await checked.communicate()
    assert checked.returncode == 0, said.decode()
