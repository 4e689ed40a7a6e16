"""Many connections: what each costs, and what happens when there are more than there are files for."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path

import pytest

from router.http.files import most_clients, raise_file_limit
from tests.router.http.alone import alone, connect, post
from tests.router.http.many import ROOM, Crowd, replica, streamed
from tests.router.scripted import BODY, ScriptedReplica, until

_IDLE, _STREAMING = 1000, 200
_IDLE_BYTES, _STREAM_BYTES = 12 * 1024, 60 * 1024


async def test_idle_clients_and_streams_cost_little(tmp_path: Path) -> None:
    server, url, streams = await replica(ScriptedReplica("r0").state().to_json())
    async with alone([("r0", url)], tmp_path, *ROOM) as router:
        # What is made once, at the first of them.
        first = Crowd(router.port)
        await first.join(20, streamed())
        await until(lambda: first.events == 20)
        first.leave()
        await until(lambda: not streams)
        before = router.resident_bytes()
        crowd = Crowd(router.port)
        await crowd.join(_IDLE)
        files = router.open_files
        await until(lambda: files() > _IDLE, 30)
        idle = router.resident_bytes()
        assert idle - before < _IDLE * _IDLE_BYTES
        await crowd.join(_STREAMING, streamed())
        await until(lambda: crowd.events == _STREAMING, 30)
        assert router.resident_bytes() - idle < _STREAMING * _STREAM_BYTES
        for stream in streams:
            stream.tell()
        await until(lambda: crowd.events == 2 * _STREAMING, 30)
        assert (crowd.closed(), crowd.refused()) == (0, [])
        crowd.leave()
        await until(lambda: not streams)
        await until(lambda: files() < 50)
        assert await router.metric("kvring_in_flight_requests") == 0
    server.close()


async def test_more_clients_than_files_are_turned_away_and_the_others_served(tmp_path: Path) -> None:
    served = ScriptedReplica("r0")
    await served.start()
    loop = asyncio.get_running_loop()
    async with alone([("r0", served.url)], tmp_path) as router:
        resource.prlimit(router.pid, resource.RLIMIT_NOFILE, (64, 64))
        # It looks about once a second.
        await asyncio.sleep(1.5)
        clients = [await connect(router.port) for _ in range(100)]
        last = await asyncio.wait_for(loop.sock_recv(clients[-1], 4096), 5)
        assert last.startswith(b"HTTP/1.1 503 ")
        assert b"too many clients" in last
        assert router.open_files() < 50
        # Who was there before is served, and the replica is blamed for nothing.
        for client in clients[:5]:
            await loop.sock_sendall(client, post(BODY))
            answer = await asyncio.wait_for(loop.sock_recv(client, 4096), 5)
            assert answer.startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(1.5)
        log = router.child.log.read_text()
        assert "clients turned away" in log
        assert "is down" not in log
        for client in clients:
            client.close()
        await until(lambda: router.open_files() < 30)
        again = await connect(router.port)
        await loop.sock_sendall(again, post(BODY))
        assert (await asyncio.wait_for(loop.sock_recv(again, 4096), 5)).startswith(b"HTTP/1.1 200 ")
        again.close()
    await served.stop()


@pytest.mark.parametrize(
    ("files", "in_flight", "clients"), [(64, 4096, 24), (20_000, 4096, 15_648), (1024, 64, 704)]
)
def test_files_are_left_for_replicas(files: int, in_flight: int, clients: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Lower than what is open: nothing may be opened until it is as before.
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, before[1]))
    try:
        assert most_clients(in_flight) == clients
        raised = raise_file_limit()
        assert raised == resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= files
        os.close(os.dup(0))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
