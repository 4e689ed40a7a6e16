"""A router and its oracle before the same replica, and raw clients of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from router.app import Router
from router.config import RouterConfig
from tests.router.oracle.raw_replica import RawReplica
from tests.router.oracle.relay import Oracle
from tests.router.oracle.wire import Cut, Message, read_message, reset, write_pieces
from tests.router.scripted import until


@dataclass(frozen=True, slots=True)
class Call:
    """What a client sends: requests over one connection, each in `head` and `body`, cut by `seed`.

    Where `ahead`, all are sent before an answer is read. `stop` is where the client leaves, by RST or FIN.
    """

    requests: tuple[tuple[bytes, bytes], ...]
    seed: int | None = None
    ahead: bool = False
    stop: int | None = None
    by_reset: bool = False
    awaits_continue: bool = False

    @property
    def sent(self) -> bytes:
        return b"".join(head + body for head, body in self.requests)


class Pair:
    """Both routers, one replica."""

    def __init__(self, router: Router, oracle: Oracle, replica: RawReplica) -> None:
        self.router = router
        self.oracle = oracle
        self.replica = replica

    async def idle(self) -> None:
        """Wait until both hold nothing, and the replica has read all that was sent to it."""
        pool = self.router.core.pool
        await until(
            lambda: (
                not self.router.gateway.held
                and not pool.busy
                and not self.oracle.held
                and self.replica.connections == pool.idle
            )
        )


@asynccontextmanager
async def pair(**limits: Any) -> AsyncIterator[Pair]:
    """Start all three; `limits` are the router's."""
    replica = RawReplica()
    await replica.start()
    config = RouterConfig.load(
        flags={
            "listen": {"port": 0},
            "fleet": {
                "replicas": [{"name": "r0", "url": replica.url}],
                "state_poll_seconds": 1,
                # Broken answers are what is tried here.
                "failures_to_suspect": 100,
            },
            "observe": {"access_log": False, "response_headers": False},
            "limits": {"no_replica_wait_seconds": 0, "continue_streams": False, **limits},
        }
    )
    router = Router(config)
    await router.start()
    oracle = Oracle(router)
    await oracle.start()
    try:
        await until(lambda: all(one.usable for one in router.fleet.replicas))
        yield Pair(router, oracle, replica)
    finally:
        await oracle.stop()
        await router.stop()
        await replica.stop()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a router."""
    place = urlsplit(address)
    return await asyncio.open_connection(place.hostname, place.port, limit=16 * 1024 * 1024)


async def call(address: str, one: Call) -> list[Message]:
    """Do what a call says; return what was answered, as far as answers came."""
    reader, writer = await connect(address)
    answers: list[Message] = []
    try:
        async with asyncio.timeout(20):
            if one.stop is not None:
                await _leave(writer, one)
            elif one.ahead:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_send_all(writer, one))
                    both.create_task(_read_all(reader, one, answers))
            else:
                await _take_turns(reader, writer, one, answers)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    return answers


async def _leave(writer: asyncio.StreamWriter, one: Call) -> None:
    with suppress(ConnectionError):
        await write_pieces(writer, one.sent[: one.stop], one.seed)
    if one.by_reset:
        reset(writer)


async def _send_all(writer: asyncio.StreamWriter, one: Call) -> None:
    with suppress(ConnectionError):
        await write_pieces(writer, one.sent, one.seed)


async def _read_all(reader: asyncio.StreamReader, one: Call, answers: list[Message]) -> None:
    for _ in one.requests:
        if not await _read_one(reader, answers):
            return


async def _take_turns(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, one: Call, answers: list[Message]
) -> None:
    for head, body in one.requests:
        try:
            if one.awaits_continue:
                await write_pieces(writer, head, one.seed)
                answered = await reader.readuntil(b"\r\n\r\n")
                assert answered.startswith(b"HTTP/1.1 100 "), answered
                await write_pieces(writer, body, one.seed)
            else:
                await write_pieces(writer, head + body, one.seed)
        except ConnectionError:
            # What was refused before it was whole is answered all the same.
            pass
        if not await _read_one(reader, answers):
            return


async def _read_one(reader: asyncio.StreamReader, answers: list[Message]) -> bool:
    """Read an answer; say whether another may follow it."""
    try:
        answer = await read_message(reader)
    except Cut:
        answer = None
    if answer is None:
        return False
    answers.append(answer)
    return answer.whole and "close" not in answer.of("connection")
