"""Who comes when too many are connected is told so, even in the middle of sending."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from router.http.turned_away import TurnedAway
from tests.router.http.alone import connect
from tests.router.oracle.loops import LOOPS
from tests.router.scripted import until


@pytest.fixture(params=LOOPS)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as made:
        yield made


def test_who_is_turned_away_sees_why_though_it_sends_a_body(runner: asyncio.Runner) -> None:
    runner.run(_turned_away())


async def _turned_away() -> None:
    loop = asyncio.get_running_loop()
    leaving: set[TurnedAway] = set()
    server = await loop.create_server(lambda: TurnedAway(leaving, True), "127.0.0.1", 0)
    client = await connect(server.sockets[0].getsockname()[1])
    # A reset would drop what the client has not read yet.
    await loop.sock_sendall(client, b"POST / HTTP/1.1\r\nContent-Length: 200000\r\n\r\n")
    await until(lambda: len(leaving) == 1)
    await asyncio.wait_for(loop.sock_sendall(client, b"x" * 200_000), 5)
    answer = b""
    async with asyncio.timeout(5):
        while piece := await loop.sock_recv(client, 65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 503 ")
    client.close()
    await until(lambda: not leaving)
    # One that neither reads nor leaves is not waited for long.
    silent = await connect(server.sockets[0].getsockname()[1])
    await until(lambda: len(leaving) == 1)
    await until(lambda: not leaving)
    silent.close()
    # Nor one that sends on and on.
    endless = await connect(server.sockets[0].getsockname()[1])
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(loop.sock_sendall(endless, b"x" * 60_000_000), 5)
    endless.close()
    server.close()


def test_who_does_not_linger_is_closed_at_once(runner: asyncio.Runner) -> None:
    runner.run(_at_once())


async def _at_once() -> None:
    loop = asyncio.get_running_loop()
    leaving: set[TurnedAway] = set()
    server = await loop.create_server(lambda: TurnedAway(leaving, False), "127.0.0.1", 0)
    client = await connect(server.sockets[0].getsockname()[1])
    answer = b""
    async with asyncio.timeout(5):
        while piece := await loop.sock_recv(client, 65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert not leaving
    client.close()
    server.close()
