"""The relay: failures walk down the ranking, nothing runs twice, and a cut stream never ends cleanly."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import ExitStack, closing, suppress
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router.fleet.members import Member
from tests.router.gateway.relayed import EVENTS, STREAM, answering, home_of
from tests.router.scripted import Handler, Rig, chunk, completion, rig, until


async def _die(request: web.Request) -> web.StreamResponse:
    """Take the request, then break the connection without a byte."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(0.05)
    return web.Response()


async def test_a_dead_home_is_skipped_at_once_and_comes_back() -> None:
    async with rig(3) as up:
        home = await home_of(up)
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


async def test_a_request_that_vanished_at_a_living_replica_is_not_computed_twice() -> None:
    async with rig(3) as up:
        for replica in up.replicas:
            replica.answer = _die
        status, body, response = await up.post()
        assert status == 502
        assert json.loads(body)["error"]["type"] == "upstream_error"
        assert response.headers["x-should-retry"] == "false"
        assert sum(len(replica.bodies) for replica in up.replicas) == 1
    async with rig(3) as up:
        home = await home_of(up)
        up.replica(home).answer = _die
        # The connection was kept from before: once more on a new one, and that is all.
        status, _, _ = await up.post()
        assert status == 502
        assert len(up.replica(home).bodies) == 3


def _ending(up: Rig) -> Handler:
    async def end(request: web.Request) -> web.StreamResponse:
        """Stop listening, then break off: as a process that is killed."""
        for replica in up.replicas:
            if str(request.url.port) in replica.url:
                asyncio.get_running_loop().create_task(replica.stop())
        await asyncio.sleep(0.2)
        return await _die(request)

    return end


async def test_what_ended_with_its_replica_runs_once_more_and_no_oftener() -> None:
    async with rig(3) as up:
        home = await home_of(up)
        up.replica(home).answer = _ending(up)
        status, _, response = await up.post()
        assert status == 200
        assert response.headers["x-kvring-replica"] != home
        assert await up.metric("kvring_failovers_total") >= 1
    async with rig(4, limits={"attempts": 4}) as up:
        for replica in up.replicas:
            replica.answer = _ending(up)
        # One whose replica ended too is not carried on to end a third.
        status, _, response = await up.post()
        assert status == 502
        assert response.headers["x-should-retry"] == "false"
        assert sum(len(replica.bodies) for replica in up.replicas) == 2


async def test_a_request_that_ends_replicas_runs_on_two_whatever_connections_are_kept() -> None:
    async with rig(4, policy={"name": "round_robin"}, limits={"attempts": 4}) as up:
        for _ in range(8):
            assert (await up.post())[0] == 200
        assert up.router.core.pool.idle == 4
        for replica in up.replicas:
            replica.bodies.clear()
            replica.answer = _ending(up)
        status, _, response = await up.post()
        assert (status, response.headers["x-should-retry"]) == (502, "false")
        assert [len(replica.bodies) for replica in up.replicas if replica.bodies] == [1, 1]


async def test_who_cannot_be_reached_any_more_may_still_compute() -> None:
    """Its kept connection ends, and a new one is not refused: it hangs, as behind a wall."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as listening, ExitStack() as held:
        listening.setblocking(False)
        address, posted = listening.getsockname(), 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal posted
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while head := await reader.readuntil(b"\r\n\r\n"):
                    if not head.startswith(b"POST"):
                        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                        continue
                    posted += 1
                    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    await reader.readexactly(size)
                    if posted == 2:
                        accepting.cancel()
                        await asyncio.sleep(0)
                        for _ in range(4):
                            one = held.enter_context(closing(socket.socket()))
                            one.setblocking(False)
                            one.connect_ex(address)
                        break
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            writer.close()

        async def accept() -> None:
            loop = asyncio.get_running_loop()
            serving = set()
            while True:
                sock, _ = await loop.sock_accept(listening)
                serving.add(asyncio.create_task(serve(*await asyncio.open_connection(sock=sock))))

        patient = {"hung": {"poll_timeout_seconds": 30}}
        async with rig(2, fleet=patient, limits={"connect_seconds": 0.3}) as up:
            accepting = asyncio.create_task(accept())
            for member in up.router.fleet.replicas:
                member.told(Member(f"http://127.0.0.1:{address[1]}", member.name))
            assert (await up.post())[0] == 200
            assert up.router.core.pool.idle == 1
            status, _, response = await up.post()
            assert (status, response.headers["x-should-retry"]) == (502, "false")
            assert posted == 2


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
        home = await home_of(up)
        up.replica(home).answer = answering({"error": {}}, status)
        for _ in range(10):
            answered, _, response = await up.post()
            assert answered == 200
            assert response.headers["x-kvring-replica"] != home
        await up.ready(3)
        for replica in up.replicas:
            replica.answer = answering({"error": {"message": "full"}}, status, **{"Retry-After": "3"})
        answered, body, response = await up.post()
        assert (answered, response.headers["Retry-After"]) == (status, "3")
        assert json.loads(body) == {"error": {"message": "full"}}
        hits = await up.metric("kvring_hit_tokens_total")
        assert hits == 16 * 11


async def test_a_replica_that_fails_always_is_left_alone() -> None:
    async with rig(3) as up:
        home = await home_of(up)
        up.replica(home).answer = answering({"error": {}}, 500)
        statuses = [(await up.post())[0] for _ in range(30)]
        # A 500 may have run: it is passed on, and the next requests go elsewhere.
        assert statuses.count(500) == 2
        attempts = sum(len(replica.bodies) for replica in up.replicas)
        assert attempts == 31
        up.replica(home).answer = None
        await up.ready(3)


@pytest.mark.parametrize("ending", ["abort", "clean", "half", "silent"])
async def test_a_cut_stream_never_ends_cleanly(ending: str) -> None:
    async with rig(2, limits={"idle_seconds": 0.5}) as up:

        async def cut(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for event in EVENTS[:6]:
                await response.write(event)
            if ending == "half":
                await response.write(EVENTS[7][:20])
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
        async with up.session.post(f"{up.router.address}/v1/chat/completions", json=STREAM) as response:
            try:
                async for data in response.content.iter_any():
                    received += data
            except aiohttp.ClientPayloadError:
                broken = True
            else:
                broken = False
        assert broken
        whole = b"".join(EVENTS[:6])
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
        up.replicas[0].answer = lambda request: _cut_after(request, [*EVENTS[:4], one])
        body = {**STREAM, **fields}
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
            replica.answer = answering({"error": {}}, 503, **{"x-kvring-ran": "true"})
        assert (await up.post())[0] == 503
        assert sum(len(replica.bodies) for replica in up.replicas) == 2


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
