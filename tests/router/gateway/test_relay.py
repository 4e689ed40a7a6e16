"""The relay: bytes pass as they are, failures walk down the ranking, nothing runs twice."""

from __future__ import annotations

import asyncio
import json
import random
from hashlib import sha256
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router.fleet.members import Member
from tests.router.scripted import BODY, Handler, Rig, chunk, completion, rig, stream, until

_STREAM = {**BODY, "stream": True}
_TEXT = "春天来了。😀 Grüße — ¡hola!"
_EVENTS = [
    chunk("", role="assistant"),
    *(chunk(letter) for letter in _TEXT),
    chunk(None, "stop"),
    b"data: [DONE]\n\n",
]


def _cut(data: bytes, seed: int) -> list[bytes]:
    """Cut bytes anywhere, within characters and line ends too."""
    draw = random.Random(seed)
    pieces = []
    while data:
        size = draw.choice((1, 2, 3, 7, 50, 400))
        pieces.append(data[:size])
        data = data[size:]
    return pieces


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
async def test_a_stream_passes_byte_for_byte(line_end: bytes) -> None:
    body = b": hello" + b"\n\n" + b"".join(_EVENTS).replace(b"data: ", b"data:", 3)
    body = body.replace(b"data: [DONE]", b"event: end\nid: 7\ndata: [DONE]").replace(b"\n", line_end)
    async with rig(1) as up:
        for seed in range(5):
            up.replicas[0].answer = lambda request, seed=seed: stream(request, _cut(body, seed))
            status, received, response = await up.post(_STREAM)
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
    events = [*_EVENTS[:-1], usage, _EVENTS[-1]]
    async with rig(1) as up:
        up.replicas[0].answer = lambda request: stream(request, _cut(b"".join(events), 1))
        body = dict(_STREAM) if options == "absent" else {**_STREAM, "stream_options": options}
        _, received, _ = await up.post(body)
        sent = json.loads(up.replicas[0].bodies[0])
        assert sent["stream_options"]["include_usage"] is True
        assert received == b"".join(events if shown else _EVENTS)
        assert await up.metric("kvring_hit_tokens_total", replica="r0") == 16
        assert await up.metric("kvring_prompt_tokens_total", replica="r0") == 40


async def test_a_body_passes_byte_for_byte_unless_usage_must_be_asked() -> None:
    raw = (
        b'{ "model":"m",\n "seed": 12345678901234567890123, "x": 1e-7, "messages":[{"role":"user",'
        b'"content":"\xc3\xa9\\u00e9"}], "chat_template_kwargs":{"enable_thinking":false}, "zz":{"a":[1,2]} }'
    )
    streamed = raw.replace(b'"x": 1e-7', b'"stream": true')
    async with rig(1) as up:
        await up.post(raw)
        assert up.replicas[0].bodies == [raw]
        up.replicas[0].answer = lambda request: stream(request, _EVENTS)
        await up.post(streamed)
        inserted = b'{"stream_options":{"include_usage":true},'
        assert up.replicas[0].bodies[1] == inserted + streamed[1:]


async def test_counts_are_kept_by_replica() -> None:
    async with rig(1) as up:
        for _ in range(3):
            await up.post()
        up.replicas[0].answer = _answer_json(completion(cached_tokens=None))
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


def _answer_json(body: object, status: int = 200, **headers: str) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(body, status=status, headers=headers)

    return answer


async def _die(request: web.Request) -> web.StreamResponse:
    """Take the request, then break the connection without a byte."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(0.05)
    return web.Response()


async def _home(up: Rig) -> str:
    _, _, response = await up.post()
    return response.headers["x-kvring-replica"]


async def test_a_dead_home_is_skipped_at_once_and_comes_back() -> None:
    async with rig(3) as up:
        home = await _home(up)
        port = int(up.replica(home).url.rsplit(":", 1)[1])
        await up.replica(home).stop()
        status, _, response = await up.post()
        assert status == 200
        assert response.headers["x-kvring-replica"] != home
        await up.ready(2)
        before = await up.metric("kvring_failovers_total")
        for _ in range(5):
            assert (await up.post())[0] == 200
        assert await up.metric("kvring_failovers_total") == before
        await up.replica(home).start(port)
        await up.ready(3)


async def test_a_request_that_vanished_runs_once_more_and_no_oftener() -> None:
    async with rig(3) as up:
        for replica in up.replicas:
            replica.answer = _die
        status, body, response = await up.post()
        assert status == 502
        assert json.loads(body)["error"]["type"] == "upstream_error"
        assert response.headers["x-should-retry"] == "false"
        assert sum(len(replica.bodies) for replica in up.replicas) == 2
    async with rig(3) as up:
        home = await _home(up)
        up.replica(home).answer = _die
        # The connection was kept from before: once more on a new one, and that is all.
        status, _, _ = await up.post()
        assert status == 502
        assert len(up.replica(home).bodies) == 3


async def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    async with rig(1) as up:

        async def close_after(request: web.Request) -> web.Response:
            response = web.json_response(completion())
            transport = request.transport
            assert transport is not None
            asyncio.get_running_loop().call_later(0.002, transport.close)
            return response

        up.replicas[0].answer = close_after
        for number in range(150):
            assert (await up.post())[0] == 200
            await asyncio.sleep(0.002 if number % 2 else 0)


async def test_silence_is_never_retried() -> None:
    async with rig(2, limits={"first_byte_seconds": 0.3}) as up:

        async def hang(request: web.Request) -> web.Response:
            await asyncio.sleep(5)
            return web.Response()

        for replica in up.replicas:
            replica.answer = hang
        status, _, response = await up.post()
        assert status == 504
        assert response.headers["x-should-retry"] == "false"
        assert sum(len(replica.bodies) for replica in up.replicas) == 1
        await until(lambda: sum(replica.closed for replica in up.replicas) == 1)


@pytest.mark.parametrize("status", [429, 503])
async def test_back_pressure_goes_to_the_next_and_harms_nobody(status: int) -> None:
    async with rig(3) as up:
        home = await _home(up)
        up.replica(home).answer = _answer_json({"error": {}}, status)
        for _ in range(10):
            answered, _, response = await up.post()
            assert answered == 200
            assert response.headers["x-kvring-replica"] != home
        await up.ready(3)
        for replica in up.replicas:
            replica.answer = _answer_json({"error": {"message": "full"}}, status, **{"Retry-After": "3"})
        answered, body, response = await up.post()
        assert (answered, response.headers["Retry-After"]) == (status, "3")
        assert json.loads(body) == {"error": {"message": "full"}}
        hits = await up.metric("kvring_hit_tokens_total")
        assert hits == 16 * 11


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_clients_mistake_says_nothing_about_the_replica(status: int) -> None:
    async with rig(1) as up:
        up.replicas[0].answer = _answer_json({"error": {"message": "no", "code": status}}, status)
        for _ in range(20):
            answered, body, _ = await up.post()
            assert answered == status
            assert json.loads(body)["error"]["code"] == status
        up.replicas[0].answer = None
        assert (await up.post())[0] == 200


async def test_a_replica_that_fails_always_is_left_alone() -> None:
    async with rig(3) as up:
        home = await _home(up)
        up.replica(home).answer = _answer_json({"error": {}}, 500)
        statuses = [(await up.post())[0] for _ in range(30)]
        # A 500 may have run: it is passed on, and the next requests go elsewhere.
        assert statuses.count(500) == 2
        attempts = sum(len(replica.bodies) for replica in up.replicas)
        assert attempts == 31
        up.replica(home).answer = None
        await up.ready(3)


async def test_a_redirect_is_not_followed() -> None:
    async with rig(1) as up:
        up.replicas[0].answer = _answer_json({}, 302, Location="http://127.0.0.1:9/")
        assert (await up.post())[0] == 502


@pytest.mark.parametrize("ending", ["abort", "clean", "half", "silent"])
async def test_a_cut_stream_never_ends_cleanly(ending: str) -> None:
    async with rig(2, limits={"idle_seconds": 0.5}) as up:

        async def cut(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for event in _EVENTS[:6]:
                await response.write(event)
            if ending == "half":
                await response.write(_EVENTS[7][:20])
            if ending == "silent":
                await asyncio.sleep(20)
            if ending in ("abort", "half"):
                assert request.transport is not None
                await asyncio.sleep(0.05)
                request.transport.abort()
            return response

        for replica in up.replicas:
            replica.answer = cut
        received = b""
        async with up.session.post(f"{up.router.address}/v1/chat/completions", json=_STREAM) as response:
            try:
                async for data in response.content.iter_any():
                    received += data
            except aiohttp.ClientPayloadError:
                broken = True
            else:
                broken = False
        assert broken
        whole = b"".join(_EVENTS[:6])
        assert received.startswith(whole)
        (error,) = received[len(whole) :].split(b"\n\n")[:-1]
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "replica_lost"
        assert sum(len(replica.bodies) for replica in up.replicas) == 1
        assert await up.metric("kvring_requests_total", outcome="broken_off") == 1


async def _cut_after(request: web.Request, events: list[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(event)
    await asyncio.sleep(0.05)
    assert request.transport is not None
    request.transport.abort()
    return response


@pytest.mark.parametrize("fields", [{"n": 2}, {"path": "/v1/completions", "prompt": ["a", "b"]}])
async def test_one_choice_that_ended_is_not_the_end_of_all(fields: dict[str, Any]) -> None:
    one = chunk(None, "stop", choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    async with rig(1) as up:
        up.replicas[0].answer = lambda request: _cut_after(request, [*_EVENTS[:4], one])
        body = {**_STREAM, **fields}
        path = body.pop("path", "/v1/chat/completions")
        url = up.router.address + path
        async with up.session.post(url, json=body) as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        assert await up.metric("kvring_requests_total", outcome="broken_off") == 1


async def test_an_answer_that_broke_off_in_its_headers_did_run() -> None:
    started = 0

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal started
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            started += 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: appl")
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with rig(2) as up:
        server = await asyncio.start_server(half, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for member in up.router.fleet.replicas:
            member.told(Member(f"http://127.0.0.1:{port}", member.name))
        assert (await up.post())[0] == 502
        assert started == 1
        server.close()


async def test_work_that_was_cut_short_by_a_drain_runs_once_more() -> None:
    async with rig(3) as up:
        for replica in up.replicas:
            replica.answer = _answer_json({"error": {}}, 503, **{"x-kvring-ran": "true"})
        assert (await up.post())[0] == 503
        assert sum(len(replica.bodies) for replica in up.replicas) == 2


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    async with rig(1, limits={"write_seconds": 0.3}) as up:

        async def endless(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            while True:
                await response.write(chunk("x" * 50_000))

        up.replicas[0].answer = endless
        host, port = up.router.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = json.dumps(_STREAM).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await until(lambda: up.replicas[0].running == 1)
        await until(lambda: up.replicas[0].running == 0)
        assert up.router.fleet.replicas[0].load.in_flight == 0
        assert await up.metric("kvring_requests_total", outcome="client_closed") == 1
        writer.close()
        assert reader is not None


async def test_an_error_before_the_first_byte_is_a_status_not_a_stream() -> None:
    async with rig(1) as up:
        up.replicas[0].answer = _answer_json({"error": {"message": "too long"}}, 400)
        status, _, response = await up.post(_STREAM)
        assert status == 400
        assert response.content_type == "application/json"


async def test_an_error_within_a_stream_passes_and_is_counted() -> None:
    async with rig(1) as up:
        events = [*_EVENTS[:4], b'data: {"error":{"message":"out of memory"}}\n\n', b"data: [DONE]\n\n"]
        up.replicas[0].answer = lambda request: stream(request, events)
        _, received, _ = await up.post(_STREAM)
        assert received == b"".join(events)
        assert await up.metric("kvring_requests_total", outcome="replica_error") == 1


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("phase", ["headers", "body"])
async def test_a_client_that_leaves_is_noticed_in_every_phase(streamed: bool, phase: str) -> None:
    async with rig(1) as up:
        replica = up.replicas[0]

        async def slow(request: web.Request) -> web.StreamResponse:
            if phase == "headers":
                await asyncio.sleep(20)
            kind = "text/event-stream" if streamed else "application/json"
            response = web.StreamResponse(headers={"Content-Type": kind})
            await response.prepare(request)
            await response.write(_EVENTS[0])
            await asyncio.sleep(20)
            return response

        replica.answer = slow
        task = asyncio.create_task(up.post({**BODY, "stream": streamed}))
        await until(lambda: replica.running == 1)
        await asyncio.sleep(0.1)
        task.cancel()
        await until(lambda: replica.closed == 1 and replica.running == 0)
        await until(lambda: up.router.fleet.replicas[0].load.in_flight == 0)
        assert await up.metric("kvring_requests_total", outcome="client_closed") == 1
        assert await up.metric("kvring_in_flight_requests") == 0
        # A client that left says nothing about the replica.
        replica.answer = None
        assert (await up.post())[0] == 200


async def test_three_hundred_streams_run_at_once() -> None:
    async with rig(3, policy={"name": "round_robin"}) as up:
        gate = asyncio.Event()

        async def wait(request: web.Request) -> web.StreamResponse:
            await gate.wait()
            return await stream(request, _EVENTS)

        for replica in up.replicas:
            replica.answer = wait
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def one() -> int:
                async with session.post(f"{up.router.address}/v1/chat/completions", json=_STREAM) as response:
                    await response.read()
                    return response.status

            tasks = [asyncio.create_task(one()) for _ in range(300)]
            await until(lambda: sum(replica.running for replica in up.replicas) == 300)
            assert await up.metric("kvring_replica_in_flight_requests") == 300
            gate.set()
            assert set(await asyncio.gather(*tasks)) == {200}
        assert await up.metric("kvring_replica_in_flight_requests") == 0


async def test_a_large_answer_passes_whole() -> None:
    body = json.dumps({"data": "x" * 3_000_000}).encode()
    async with rig(1) as up:

        async def large(request: web.Request) -> web.Response:
            return web.Response(body=body, content_type="application/json")

        up.replicas[0].answer = large
        status, received, _ = await up.post()
        assert (status, received) == (200, body)


@pytest.mark.parametrize(("place", "status"), [(0, 500), (2, 500), (3, 200)])
async def test_a_policy_of_ones_own_may_only_rank_whom_it_was_given(place: int, status: int) -> None:
    """As far as its ranking would be walked; it is told before anything is sent, and is in the ledger."""
    policy = {"name": "tests.router.gateway.stranger", "options": {"place": place}}
    async with rig(4, policy=policy, limits={"attempts": 3}) as up:
        answered, body, _ = await up.post()
        assert answered == status
        assert sum(len(replica.bodies) for replica in up.replicas) == (status == 200)
        if status == 500:
            assert json.loads(body)["error"]["message"] == "the router failed"
        assert await up.metric("kvring_refusals_total", status="500") == (status == 500)
