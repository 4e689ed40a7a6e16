"""Connecting to a replica: a client that leaves meanwhile, one that never answers, and no file for it."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest

from router.config import LimitOptions
from router.http.failures import Exhausted, Refused
from router.http.origin import Origin
from router.http.pool import Pool

_SENT = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@contextmanager
def _never_accepting() -> Iterator[Origin]:
    """Listen where the kernel takes no more connections: who comes waits."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        held = [socket.socket() for _ in range(4)]
        for one in held:
            one.setblocking(False)
            one.connect_ex(address)
        try:
            yield Origin(address[0], address[1], False, b"x")
        finally:
            for one in held:
                one.close()


@asynccontextmanager
async def _pool(**limits: float) -> AsyncIterator[Pool]:
    options = LimitOptions(**limits)
    pool = Pool(lambda: options)
    try:
        yield pool
    finally:
        await pool.close()


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_nothing_is_left_of_a_client_that_leaves_while_its_replica_is_connected_to() -> None:
    with _never_accepting() as origin:
        async with _pool(connect_seconds=30) as pool:
            files, tasks = _open_files(), len(asyncio.all_tasks())
            sending = [asyncio.create_task(pool.send(origin, [_SENT], len(_SENT))) for _ in range(20)]
            await asyncio.sleep(0.1)
            assert _open_files() > files
            for one in sending:
                one.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
            await asyncio.sleep(0.05)
            assert (_open_files(), len(asyncio.all_tasks()), pool.busy) == (files, tasks, 0)


async def test_a_replica_that_takes_no_connection_is_given_up_in_time() -> None:
    with _never_accepting() as origin:
        async with _pool(connect_seconds=0.1) as pool:
            files = _open_files()
            with pytest.raises(Refused, match="in time"):
                await pool.send(origin, [_SENT], len(_SENT))
            await asyncio.sleep(0.05)
            assert _open_files() == files


async def test_only_a_host_that_says_so_has_nobody_who_listens() -> None:
    async with _pool(connect_seconds=0.1) as pool:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            assert await pool.is_gone(Origin("127.0.0.1", bound.getsockname()[1], False, b"x"))
        with _never_accepting() as full:
            assert not await pool.is_gone(full)
        assert not await pool.is_gone(Origin("nobody.invalid", 80, False, b"x"))


async def test_a_lack_of_files_is_held_against_no_replica() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with _pool() as pool:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            origin = Origin("127.0.0.1", listening.getsockname()[1], False, b"x")
            # Lower than what is open.
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
            try:
                with pytest.raises(Exhausted):
                    await pool.send(origin, [_SENT], len(_SENT))
                assert not await pool.is_gone(origin)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_no_more_connections_are_kept_than_were_used_at_once() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with _pool() as pool, await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        origin = Origin("127.0.0.1", server.sockets[0].getsockname()[1], False, b"x")
        for fresh in (False, True, True, False):
            (await pool.send(origin, [_SENT], len(_SENT), fresh)).close()
            assert not await pool.is_gone(origin)
            assert (pool.idle, pool.busy) == (1, 0)
