"""Clients that leave within a request, in every phase of it, and replicas that tell when they saw that."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from struct import pack
from time import monotonic
from typing import Any

from aiohttp import web

from tests.router.http.alone import connect, post
from tests.router.scripted import BODY, ScriptedReplica, chunk

# What a request is in when its client leaves. In the first three no replica has seen it.
UNSEEN = ("sending", "queued", "prepared")
SEEN = ("headers", "events", "body", "unread", "continued")
PHASES = (*UNSEEN, *SEEN)
# A model that the router knows of and nobody serves.
NOBODYS = "nobodys"
_LONG = chunk("x" * 50_000)
# A write that takes so long: all is full that lies between a replica and a client that does not read.
_FILLED_SECONDS = 0.1
_TOKEN = (
    b'data: {"id":"x","created":1,"choices":[{"index":0,"delta":{"content":"a"}%b,"finish_reason":null}]}\n\n'
)


def token(number: int) -> bytes:
    """Return the event of one token, as our replica writes it for routers."""
    return _TOKEN % (b',"token_ids":[%d]' % number)


class Watched:
    """What replicas saw of each request, by its id."""

    def __init__(self) -> None:
        self._arrived: dict[str, asyncio.Event] = {}
        self._closed: dict[str, asyncio.Future[float]] = {}

    def arrived(self, request_id: str) -> asyncio.Event:
        """Set once a replica has the request just where its client shall leave."""
        return self._arrived.setdefault(request_id, asyncio.Event())

    def closed(self, request_id: str) -> asyncio.Future[float]:
        """When the last replica to have it saw its connection close (monotonic)."""
        if request_id not in self._closed:
            self._closed[request_id] = asyncio.get_running_loop().create_future()
        return self._closed[request_id]

    def forget(self, request_id: str) -> None:
        self._arrived.pop(request_id, None)
        self._closed.pop(request_id, None)

    def serve(self, replica: ScriptedReplica) -> None:
        """Let a replica answer as requests say in `phase`."""
        replica.answer = self._answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        phase, request_id = body["phase"], request.headers["x-request-id"]
        if phase == "whole":
            return web.json_response({"choices": []})
        if phase == "reset" or (phase == "continued" and not request.path.startswith("/resume/")):
            return await self._die(request, phase)
        try:
            if phase == "headers":
                self.arrived(request_id).set()
                await asyncio.sleep(60)
            response = web.StreamResponse(
                headers={"Content-Type": "application/json" if phase == "body" else "text/event-stream"}
            )
            if phase == "body":
                response.content_length = 1000
            await response.prepare(request)
            await response.write(b"{" if phase == "body" else token(7))
            while phase == "unread":
                try:
                    async with asyncio.timeout(_FILLED_SECONDS):
                        await response.write(_LONG)
                except TimeoutError:
                    self.arrived(request_id).set()
                    await asyncio.sleep(60)
            self.arrived(request_id).set()
            await asyncio.sleep(60)
            return response
        except asyncio.CancelledError:
            closed = self.closed(request_id)
            if not closed.done():
                closed.set_result(monotonic())
            raise

    async def _die(self, request: web.Request, phase: str) -> web.StreamResponse:
        """Break off: at once, or after the first tokens."""
        assert request.transport is not None
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if phase == "continued":
            await response.prepare(request)
            for number in range(3):
                await response.write(token(number))
            await asyncio.sleep(0.01)
        request.transport.abort()
        return response


class Leaver:
    """A client of the router on `port`, some of whose requests it waits for, and some not."""

    def __init__(self, port: int, watched: Watched, seed: int) -> None:
        self._port = port
        self._watched = watched
        self._draw = random.Random(seed)

    async def leave(self, phase: str, request_id: str) -> float | None:
        """Leave within a phase; return the seconds until the replica saw that, None where none had it."""
        client = await connect(self._port, 4096 if phase == "unread" else 0)
        loop = asyncio.get_running_loop()
        try:
            sent = self.request(phase, request_id)
            await loop.sock_sendall(client, sent[: len(sent) // 2] if phase == "sending" else sent)
            if phase in UNSEEN:
                await asyncio.sleep(self._draw.random() * 0.02)
            else:
                async with asyncio.timeout(20):
                    await self._watched.arrived(request_id).wait()
                if self._draw.random() < 0.5:
                    # What was sent so far has come.
                    await asyncio.sleep(0.01)
            if self._draw.random() < 0.5:
                # By reset, as a process that is killed.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
            left_at = monotonic()
        finally:
            client.close()
        if phase in UNSEEN:
            return None
        async with asyncio.timeout(20):
            seconds = await self._watched.closed(request_id) - left_at
        self._watched.forget(request_id)
        return seconds

    async def stay(self, phase: str, request_id: str) -> int:
        """Wait for an answer that comes at once; return its status."""
        client = await connect(self._port)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(client, self.request(phase, request_id))
            async with asyncio.timeout(20):
                return int((await loop.sock_recv(client, 4096)).split(b" ")[1])
        finally:
            client.close()

    def request(self, phase: str, request_id: str) -> bytes:
        """Return a request that is to be answered as a phase needs it."""
        body: dict[str, Any] = {
            **BODY,
            "phase": phase,
            "stream": phase in ("events", "unread", "continued"),
        }
        if phase == "queued":
            body["model"] = NOBODYS
        elif phase == "prepared":
            # So large that a thread reads it.
            body["messages"] = [{"role": "user", "content": f"{request_id} " * 40_000}]
        return post(body, headers=b"x-request-id: %b\r\n" % request_id.encode())


async def in_groups(work: Sequence[Callable[[], Awaitable[Any]]], at_once: int) -> list[Any]:
    """Do all of it, so many at a time; return what came of each."""
    gate = asyncio.Semaphore(at_once)

    async def one(call: Callable[[], Awaitable[Any]]) -> Any:
        async with gate:
            return await call()

    return await asyncio.gather(*map(one, work))
