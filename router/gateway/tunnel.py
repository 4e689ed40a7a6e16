"""Passes what is no inference on to the control plane: in this process, over a pair of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from router.gateway.answer import BodyAnswer
from router.gateway.headers import towards_client, towards_replica
from router.http.failures import UpstreamError
from router.http.origin import Origin
from router.http.replica_connection import ReplicaConnection
from router.http.reply import Reply
from router.http.request import Request
from router.wire.errors import ApiError, Source

_ORIGIN = Origin("control", 0, False, b"control")
_READ_BYTES = 64 * 1024
# Each takes two files.
_MOST_AT_ONCE = 64
# Readings of a large fleet take tens of milliseconds.
_LONGEST_SECONDS = 60.0


class Tunnel:
    """Carries one request at a time over each pair; control is asked seldom."""

    def __init__(self, server: Callable[[], asyncio.BaseProtocol]) -> None:
        """`server` makes what serves one connection of the control plane."""
        self._server = server
        self._room = memoryview(bytearray(_READ_BYTES))
        self._carried = 0

    async def carry(self, request: Request, request_id: str, reply: Reply) -> None:
        """Answer the request as the control plane does; ApiError where it does not, or has enough to do."""
        if self._carried >= _MOST_AT_ONCE:
            raise ApiError(
                503, "too many requests that are no inference", source=Source.ROUTER, retry_after_seconds=1
            )
        self._carried += 1
        try:
            await self._carry(request, request_id, reply)
        finally:
            self._carried -= 1

    async def _carry(self, request: Request, request_id: str, reply: Reply) -> None:
        # A body that nobody reads: aiohttp would answer HEAD without one, and so does the reply.
        method = "GET" if request.method == "HEAD" else request.method
        head = b"%b %b HTTP/1.1\r\nhost: control\r\ncontent-length: %d\r\nconnection: close\r\n%b\r\n" % (
            method.encode(),
            request.target,
            len(request.body),
            towards_replica(request, request_id, keep_keys=True),
        )
        connection = await self._connect()
        exchange = connection.send((head, request.body), len(head) + len(request.body))
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                await exchange.head
                fields = [*towards_client(exchange.headers), (b"x-request-id", request_id.encode())]
                answer = BodyAnswer(exchange, reply, fields, lambda: None)
                answer.begin()
                await answer.over
        except (UpstreamError, TimeoutError) as error:
            raise ApiError(500, "the router failed", source=Source.ROUTER) from error
        finally:
            exchange.close()
        if not reply.ended:
            raise ApiError(500, "the router failed", source=Source.ROUTER)

    def free(self, connection: ReplicaConnection) -> None:
        """Close a connection that was used."""
        connection.give_up()

    def gone(self, connection: ReplicaConnection) -> None:
        """Nothing is kept of it."""

    async def _connect(self) -> ReplicaConnection:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        served: asyncio.BaseTransport | None = None
        try:
            for end in (ours, theirs):
                end.setblocking(False)
            served, _ = await loop.connect_accepted_socket(self._server, theirs)
            _, connection = await loop.create_unix_connection(
                lambda: ReplicaConnection(_ORIGIN, self._room, self), sock=ours
            )
        except BaseException:
            if served is not None:
                served.close()
            else:
                theirs.close()
            ours.close()
            raise
        return connection
