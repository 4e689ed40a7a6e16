"""Back-pressure: of an answer that its client does not read, the router holds little."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web

from tests.router.http.alone import Alone, connect, post
from tests.router.http.feeding import EVENT, STREAM, Feeding, fed, held, settled
from tests.router.scripted import BODY, ScriptedReplica, rig, stream, until

MOST_HELD_BYTES = 256 * 1024
# Heads, and what frames chunks.
_FRAMING_BYTES = 2048


async def test_a_client_that_hardly_reads_holds_little_and_its_replica_waits(tmp_path: Path) -> None:
    async with fed("events", tmp_path) as (_, replica, router):
        for kind in ("events", "opaque", "json", "one event"):
            feeding = Feeding(kind)
            replica.answer = feeding.answer
            await _hardly_read(feeding, replica, router)


async def _hardly_read(feeding: Feeding, replica: ScriptedReplica, router: Alone) -> None:
    loop = asyncio.get_running_loop()
    client = await connect(router.port, 4096)
    await loop.sock_sendall(client, post(STREAM if "event" in feeding.kind else BODY))
    await until(feeding.begun)
    assert await settled(lambda: feeding.in_kernel) < feeding.size / 2
    assert held(feeding, router, client, 0) <= MOST_HELD_BYTES + _FRAMING_BYTES
    read = 0
    for _ in range(20):
        read += len(await loop.sock_recv(client, 1))
        await asyncio.sleep(0.01)
        assert held(feeding, router, client, read) <= MOST_HELD_BYTES + _FRAMING_BYTES
    # Others are served meanwhile.
    replica.answer = lambda request: stream(request, [EVENT, b"data: [DONE]\n\n"])
    other = await connect(router.port)
    await loop.sock_sendall(other, post(STREAM))
    answer = b""
    while b"[DONE]" not in answer:
        answer += await loop.sock_recv(other, 65536)
    # It leaves: so does its replica, which was not even read from.
    client.close()
    other.close()
    await until(lambda: replica.running == 0)


async def test_a_client_that_reads_slowly_is_served_and_one_that_stops_is_cut(tmp_path: Path) -> None:
    async with fed("events", tmp_path, "limits.write_seconds=1.5") as (feeding, replica, router):
        loop = asyncio.get_running_loop()
        client = await connect(router.port, 65536)
        await loop.sock_sendall(client, post(STREAM))
        await until(feeding.begun)
        await settled(lambda: feeding.in_kernel)
        for _ in range(25):
            for _ in range(8):
                assert await loop.sock_recv(client, 65536)
            await asyncio.sleep(0.1)
        assert replica.running == 1
        await until(lambda: replica.running == 0)
        assert await router.metric("kvring_in_flight_requests") == 0
        client.close()


async def test_slow_clients_of_long_answers_cost_no_memory(tmp_path: Path) -> None:
    async with fed("opaque", tmp_path) as (_, replica, router):
        loop = asyncio.get_running_loop()
        # What is made at the first request of each kind.
        for kind in ("json", "events", "small", "opaque"):
            replica.answer = Feeding(kind, 1_000_000).answer
            warm = await connect(router.port)
            await loop.sock_sendall(warm, post(STREAM if kind == "events" else BODY))
            await loop.sock_recv(warm, 100)
            warm.close()
            await until(lambda: replica.running == 0)
        before = router.resident_bytes()
        clients = []
        feedings = [Feeding(kind) for kind in ("events", "opaque", "json", "small")]
        for feeding in feedings:
            replica.answer = feeding.answer
            client = await connect(router.port, 4096)
            await loop.sock_sendall(client, post(STREAM if feeding.kind == "events" else BODY))
            await until(feeding.begun)
            clients.append(client)
        await settled(lambda: sum(feeding.in_kernel for feeding in feedings))
        assert router.resident_bytes() - before < 8_000_000
        for client in clients:
            client.close()
        await until(lambda: replica.running == 0)
        # Nor does an event without end, read at once.
        endless = Feeding("one event", 100_000_000)
        replica.answer = endless.answer
        client = await connect(router.port)
        await loop.sock_sendall(client, post(STREAM))
        read, tail = 0, b""
        while piece := await loop.sock_recv(client, 1 << 20):
            read += len(piece)
            tail = (tail + piece)[-400:]
        assert endless.size - MOST_HELD_BYTES < read
        # No event told its end: it is not taken for whole.
        assert b"replica_lost" in tail
        assert router.resident_bytes() - before < 8_000_000
        client.close()


async def test_headers_without_end_are_no_answer() -> None:
    async with rig(1) as up:
        sent = 0

        async def endless(request: web.Request) -> web.StreamResponse:
            nonlocal sent
            transport = request.transport
            assert transport is not None
            transport.write(b"HTTP/1.1 200 OK\r\nx: ")
            while True:
                transport.write(b"y" * 50_000)
                sent += 50_000
                await asyncio.sleep(0)
                await until(lambda: transport.get_write_buffer_size() < 65536, 60)

        up.replicas[0].answer = endless
        assert (await up.post())[0] == 502
        await until(lambda: up.replicas[0].running == 0)
        # What the kernel takes in beside it.
        assert sent < 16_000_000
