"""The relay: what clients do harms neither replicas nor each other."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from tests.router.gateway.relayed import EVENTS, STREAM, answering
from tests.router.scripted import BODY, chunk, rig, stream, until


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_clients_mistake_says_nothing_about_the_replica(status: int) -> None:
    async with rig(1) as up:
        up.replicas[0].answer = answering({"error": {"message": "no", "code": status}}, status)
        for _ in range(20):
            answered, body, _ = await up.post()
            assert answered == status
            assert json.loads(body)["error"]["code"] == status
        up.replicas[0].answer = None
        assert (await up.post())[0] == 200


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
        body = json.dumps(STREAM).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await until(lambda: up.replicas[0].running == 1)
        await until(lambda: up.replicas[0].running == 0)
        assert up.router.fleet.replicas[0].load.in_flight == 0
        assert await up.metric("kvring_requests_total", outcome="client_closed") == 1
        writer.close()
        assert reader is not None


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
            await response.write(EVENTS[0])
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
            return await stream(request, EVENTS)

        for replica in up.replicas:
            replica.answer = wait
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def one() -> int:
                async with session.post(f"{up.router.address}/v1/chat/completions", json=STREAM) as response:
                    await response.read()
                    return response.status

            tasks = [asyncio.create_task(one()) for _ in range(300)]
            await until(lambda: sum(replica.running for replica in up.replicas) == 300)
            assert await up.metric("kvring_replica_in_flight_requests") == 300
            gate.set()
            assert set(await asyncio.gather(*tasks)) == {200}
        assert await up.metric("kvring_replica_in_flight_requests") == 0
