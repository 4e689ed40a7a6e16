"""The oracle: a front and a relay on aiohttp's server and client, which say what should cross the router.

It decides with the parts of a router, asks the first of the ranking, and never anybody else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from time import monotonic
from typing import Any
from uuid import uuid4

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from router.app import Router
from router.wire.errors import ApiError, Source, error_body
from router.wire.http_server import JsonErrorRunner

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages")
_HEADER_BYTES = 32 * 1024
_GATHERED_BYTES = 1024 * 1024
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n")
_HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_REWRITTEN = frozenset(["host", "content-length", "content-encoding", "accept-encoding", "expect"])
_REFRAMED = frozenset(["content-length", "server", "date", "x-request-id", "endpoint-load-metrics"])
_INTERNAL = re.compile(
    r"x-kvring-|x-gateway-|x-envoy-|x-data-parallel-rank$|x-vllm-|x-smg-|endpoint-load-metrics-format$"
)
_BROKEN = (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, TimeoutError)


class Oracle:
    """Serves what a router serves, by aiohttp."""

    def __init__(self, router: Router) -> None:
        """`router` lends what decides."""
        self._core = router.core
        application = web.Application(client_max_size=0)
        for path in PATHS:
            application.router.add_post(path, self._answered)
        self._runner = JsonErrorRunner(
            application,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=0.1,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
        )
        self._session: aiohttp.ClientSession | None = None
        self.address = ""
        self.held = 0

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Content-Type"),
            trust_env=False,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        given = request.headers.get("x-request-id", "")
        request_id = given if re.fullmatch(r"[\x21-\x7e]{1,128}", given) else uuid4().hex
        self.held += 1
        try:
            return await self._relay(request, request_id)
        except ApiError as error:
            headers = {**error.headers(), "x-request-id": request_id}
            return web.Response(
                status=error.status, body=error.body(), content_type="application/json", headers=headers
            )
        finally:
            self.held -= 1

    async def _relay(self, request: web.Request, request_id: str) -> web.StreamResponse:
        core, session = self._core, self._session
        assert session is not None
        body = await _read(request, core.serving.config.limits.body_bytes)
        prepared = await core.preparer.prepare(request.path, body, None, watched=False)
        _, ranking = core.serving.decider.decide(prepared.ask, monotonic())
        replica = core.fleet.by_name(ranking[0].name)
        assert replica is not None
        raw, opening = prepared.raw, prepared.opening
        try:
            answer = await session.post(
                replica.url + request.path_qs,
                data=raw[:opening] + prepared.inserted + raw[opening:] if prepared.inserted else raw,
                headers=_towards_replica(request, request_id),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(502, "no answer", source=Source.REPLICA, tried=True) from error
        try:
            if 300 <= answer.status < 400:
                raise ApiError(502, "a redirect", source=Source.REPLICA, tried=True)
            headers = _towards_client(answer.headers)
            headers["x-request-id"] = request_id
            return await _pass_on(request, answer, headers, prepared.choices, prepared.usage_asked)
        finally:
            answer.close()


async def _read(request: web.Request, limit_bytes: int) -> bytes:
    body = b""
    try:
        async for piece in request.content.iter_any():
            body += piece
            if len(body) > limit_bytes:
                raise ApiError(413, "too large", code="request_too_large")
    except web.RequestPayloadError as error:
        raise ApiError(400, "the body cannot be read") from error
    return body


def _towards_replica(request: web.Request, request_id: str) -> CIMultiDict[str]:
    named = _named_in_connection(request.headers)
    sent = CIMultiDict(
        (name, value)
        for name, value in request.headers.items()
        if (lower := name.lower()) not in _HOP_BY_HOP | _REWRITTEN | named and not _INTERNAL.match(lower)
    )
    if "host" in request.headers:
        sent["X-Forwarded-Host"] = request.headers["host"]
    if request.remote:
        before = request.headers.get("x-forwarded-for")
        sent["X-Forwarded-For"] = f"{before}, {request.remote}" if before else request.remote
    sent["X-Request-Id"] = request_id
    sent["Accept-Encoding"] = "identity"
    sent["endpoint-load-metrics-format"] = "text"
    return sent


def _towards_client(headers: Mapping[str, str]) -> CIMultiDict[str]:
    named = _named_in_connection(headers)
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if (lower := name.lower()) not in _HOP_BY_HOP | _REFRAMED | named
        and not lower.startswith("x-kvring-")
    )


def _named_in_connection(headers: Mapping[str, str]) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in headers.get("connection", "").split(","))


async def _pass_on(
    request: web.Request,
    answer: aiohttp.ClientResponse,
    headers: CIMultiDict[str],
    choices: int,
    withhold_usage: bool,
) -> web.StreamResponse:
    readable = "content-encoding" not in headers
    if readable and answer.status == 200 and answer.content_type == "text/event-stream":
        return await _pass_events(request, answer, headers, choices, withhold_usage)
    gathered = b""
    if readable and answer.content_type == "application/json":
        try:
            while len(gathered) < _GATHERED_BYTES and (piece := await answer.content.readany()):
                gathered += piece
        except _BROKEN as error:
            raise ApiError(502, "broken off", source=Source.REPLICA, tried=True) from error
        if answer.content.at_eof():
            return web.Response(status=answer.status, headers=headers, body=gathered)
    response = web.StreamResponse(status=answer.status, headers=headers)
    response.content_length = answer.content_length
    await response.prepare(request)
    await response.write(gathered)
    try:
        while piece := await answer.content.readany():
            await response.write(piece)
    except _BROKEN:
        return _break_off(request, response)
    await response.write_eof()
    return response


async def _pass_events(
    request: web.Request,
    answer: aiohttp.ClientResponse,
    headers: CIMultiDict[str],
    choices: int,
    withhold_usage: bool,
) -> web.StreamResponse:
    headers.setdefault("Cache-Control", "no-cache")
    headers.setdefault("X-Accel-Buffering", "no")
    response = web.StreamResponse(status=200, headers=headers)
    await response.prepare(request)
    events = _Events(choices)
    try:
        while piece := await answer.content.readany():
            for event in events.take(piece):
                if not (events.read(event) and withhold_usage):
                    await response.write(event)
        if events.held:
            events.read(events.held)
        whole = events.done or len(events.ended) >= choices
        if events.held and whole:
            await response.write(events.held)
    except _BROKEN:
        whole = events.done
    if whole:
        await response.write_eof()
        return response
    body = error_body(502, "the replica broke off its answer", code="replica_lost")
    await response.write(b"data: " + body + b"\n\n")
    return _break_off(request, response)


def _break_off(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.close()
    return response


class _Events:
    """Cuts a stream into events, each parsed."""

    def __init__(self, choices: int) -> None:
        self.held = b""
        self.done = False
        self.ended: set[Any] = set()

    def take(self, piece: bytes) -> list[bytes]:
        self.held += piece
        events = []
        # A CR at the very end may be the first half of a CRLF.
        while (match := _EVENT_END.search(self.held)) and not (
            match.end() == len(self.held) and self.held.endswith(b"\r")
        ):
            events.append(self.held[: match.end()])
            self.held = self.held[match.end() :]
        return events

    def read(self, event: bytes) -> bool:
        """Note what it tells; return whether it is usage and nothing else."""
        lines = [line for line in re.split(rb"\r\n|\n|\r", event) if line.startswith(b"data:")]
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines)
        if data == b"[DONE]":
            self.done = True
            return False
        try:
            told = json.loads(data)
        except ValueError:
            return False
        if not isinstance(told, dict):
            return False
        for choice in told.get("choices") or ():
            if choice.get("finish_reason"):
                self.ended.add(choice.get("index", 0))
        return isinstance(told.get("usage"), dict) and told.get("choices") == []
