"""Passes one replica's answer to the client, byte for byte, and notes what it says about itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import aiohttp
from aiohttp import web

from router.config import LimitOptions
from router.gateway.headers import towards_client
from router.gateway.usage import AnswerReader
from router.wire.errors import ApiError, Source, error_body
from router.wire.sse import EventCutter, encode_event

# Answers up to this size are gathered before anything is sent: their usage can be read, and a replica that
# dies within one is answered with a proper error.
_GATHERED_BYTES = 1024 * 1024
# What reading from a replica raises when it is gone or silent; a client that is gone raises otherwise.
_BROKEN = (
    aiohttp.ClientPayloadError,
    aiohttp.ClientConnectionError,
    TimeoutError,
)


class Answer:
    """One answer on its way. `on_bytes` is called for every chunk that a replica sends."""

    def __init__(
        self,
        upstream: aiohttp.ClientResponse,
        limits: LimitOptions,
        headers: Mapping[str, str],
        choices: int,
        on_bytes: Callable[[], None],
        cutting: Callable[[], bool],
    ) -> None:
        """`headers` are the router's own, added to the replica's; `choices` as in AnswerReader.

        `cutting` says whether an answer that breaks off does so as the router ends.
        """
        self._upstream = upstream
        self._limits = limits
        self._headers = towards_client(upstream.headers)
        self._headers.update(headers)
        self._on_bytes = on_bytes
        self._cutting = cutting
        # Whether the replica broke off after bytes had reached the client.
        self.broken_off = False
        self.reader = AnswerReader(choices)

    async def pass_on(self, request: web.Request, withhold_usage: bool) -> web.StreamResponse:
        """Send the answer; `withhold_usage` keeps back the usage chunk that the client did not ask for.

        ApiError where the replica broke off before anything was sent; after that, `broken_off` is set and
        the connection closed, so that the client sees that this is not the end.
        """
        readable = "content-encoding" not in self._headers
        if readable and self._upstream.content_type == "text/event-stream" and self._upstream.status == 200:
            return await self._stream_events(request, withhold_usage)
        if readable and self._upstream.content_type == "application/json":
            return await self._send_json(request)
        return await self._send_opaque(request, b"")

    async def _send_json(self, request: web.Request) -> web.StreamResponse:
        gathered = bytearray()
        try:
            while len(gathered) < _GATHERED_BYTES and (chunk := await self._next(len(gathered) > 0)):
                gathered += chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(
                502, "the replica broke off its answer", source=Source.REPLICA, tried=True
            ) from error
        if self._upstream.content.at_eof():
            if self._upstream.status == 200:
                self.reader.read_body(bytes(gathered))
            return web.Response(status=self._upstream.status, headers=self._headers, body=bytes(gathered))
        return await self._send_opaque(request, bytes(gathered))

    async def _send_opaque(self, request: web.Request, gathered: bytes) -> web.StreamResponse:
        response = web.StreamResponse(status=self._upstream.status, headers=self._headers)
        response.content_length = self._upstream.content_length
        await response.prepare(request)
        if gathered:
            await self._write(request, response, gathered)
        started = bool(gathered)
        try:
            while chunk := await self._next(started):
                started = True
                await self._write(request, response, chunk)
        except _BROKEN:
            return self._break_off(request, response)
        await response.write_eof()
        return response

    async def _stream_events(self, request: web.Request, withhold_usage: bool) -> web.StreamResponse:
        self._headers.setdefault("Cache-Control", "no-cache")
        self._headers.setdefault("X-Accel-Buffering", "no")
        response = web.StreamResponse(status=200, headers=self._headers)
        await response.prepare(request)
        cutter = EventCutter()
        started = False
        try:
            while chunk := await self._next(started):
                started = True
                await self._write_events(request, response, cutter.feed(chunk), withhold_usage)
            rest = cutter.rest()
            if rest:
                self.reader.read_event(rest)
            whole = self.reader.finished
            if rest and whole:
                await self._write(request, response, rest)
        except _BROKEN:
            # Choices may have ended one by one: only [DONE] tells that there were no more.
            whole = self.reader.done
        if not whole:
            # Never a clean end for a cut answer: clients would take it for whole.
            self.reader.failed = True
            body = (
                error_body(503, "the router went down before the answer ended", code="router_stopped")
                if self._cutting()
                else error_body(502, "the replica broke off its answer", code="replica_lost")
            )
            await self._write(request, response, encode_event(body))
            return self._break_off(request, response)
        await response.write_eof()
        return response

    def _break_off(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        """Close the client's connection without the chunk that would end the answer."""
        self.broken_off = True
        if request.transport is not None:
            request.transport.close()
        return response

    async def _write_events(
        self, request: web.Request, response: web.StreamResponse, events: list[bytes], withhold_usage: bool
    ) -> None:
        sent = [event for event in events if not (self.reader.read_event(event) and withhold_usage)]
        if sent:
            await self._write(request, response, b"".join(sent))

    async def _write(self, request: web.Request, response: web.StreamResponse, data: bytes) -> None:
        """Write to the client; one that takes nothing for too long is cut off like one that left."""
        try:
            async with asyncio.timeout(self._limits.write_seconds):
                await response.write(data)
        except TimeoutError as error:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client does not read") from error

    async def _next(self, started: bool) -> bytes:
        """Return the next chunk, empty at the end; TimeoutError after too long a silence."""
        limit = self._limits.idle_seconds if started else self._limits.first_byte_seconds
        async with asyncio.timeout(limit):
            chunk = await self._upstream.content.readany()
        if chunk:
            self._on_bytes()
        return chunk
