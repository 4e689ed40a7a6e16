"""Asks one request as a stream, and notes when its tokens came and what the answer says of the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from loadgen.stream import StreamFault, StreamReader

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"
REPLICA_HEADER = "x-kvring-replica"
_SESSION_HEADER = "x-session-id"
_END_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """How long a request may take before it counts as failed. `idle_seconds` is between two reads."""

    connect_seconds: float = 10.0
    idle_seconds: float = 120.0
    total_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request. Times are seconds since it was sent.

    `gaps_seconds` lie between tokens (deltas with content); those that one read brought are 0 apart.
    `error` is the kind of failure, None where the answer is whole. Counts are None where not reported.
    """

    replica: str | None = None
    text: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    answer_tokens: int | None = None
    first_token_seconds: float | None = None
    gaps_seconds: tuple[float, ...] = ()
    total_seconds: float = 0.0
    error: str | None = None
    message: str = ""


class Client:
    """Talks to one OpenAI-compatible address.

    Connections are without limit: a queue in the client would hide the fleet's.
    """

    def __init__(
        self,
        url: str,
        limits: ClientLimits | None = None,
        api_key: str | None = None,
        path: str = CHAT_PATH,
    ) -> None:
        """`url` is the address below `/v1`; `path` says whether chats or completions are asked."""
        self._url = url.rstrip("/").removesuffix("/v1") + path
        self._limits = limits or ClientLimits()
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the connection pool."""
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=self._limits.connect_seconds,
                sock_read=self._limits.idle_seconds,
            ),
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.close()

    async def ask(self, body: Mapping[str, Any], session: str | None = None) -> Answer:
        """Send a request as a stream; failures come back in the answer, only a cancel is raised."""
        if self._http is None:
            raise RuntimeError("the client is not open")
        reader = StreamReader()
        replica: str | None = None
        error: str | None = None
        message = ""
        headers = {"Content-Type": "application/json"}
        if session is not None:
            headers[_SESSION_HEADER] = session
        payload = orjson.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
        sent = perf_counter()
        try:
            async with (
                asyncio.timeout(self._limits.total_seconds),
                self._http.post(
                    self._url,
                    data=payload,
                    headers=headers,
                    allow_redirects=False,
                ) as response,
            ):
                replica = response.headers.get(REPLICA_HEADER)
                await _read(response, reader)
        except StreamFault as fault:
            error, message = fault.kind, str(fault)
        except TimeoutError:
            error, message = "timeout", "the answer took too long"
        except aiohttp.ClientConnectorError as failure:
            error, message = "connect", str(failure)
        except (aiohttp.ClientError, OSError) as failure:
            error, message = "disconnected", repr(failure)
        total = (reader.done_at or perf_counter()) - sent
        times = reader.token_times
        return Answer(
            replica=replica,
            text=reader.text,
            prompt_tokens=reader.prompt_tokens,
            cached_tokens=reader.cached_tokens,
            answer_tokens=reader.answer_tokens,
            first_token_seconds=times[0] - sent if times else None,
            gaps_seconds=tuple(later - earlier for earlier, later in pairwise(times)),
            total_seconds=total,
            error=error,
            message=message[:500],
        )


async def _read(response: aiohttp.ClientResponse, reader: StreamReader) -> None:
    if response.status != 200:
        # The first kilobytes tell what is wrong; an error page may be endless.
        text = (await response.content.read(4096)).decode(errors="replace")
        raise StreamFault(f"http_{response.status}", text)
    if response.content_type != "text/event-stream":
        raise StreamFault("not_a_stream", f"the answer is {response.content_type}")
    async for chunk in response.content.iter_any():
        reader.feed(chunk, perf_counter())
        if reader.done_at is not None:
            break
    reader.finish(perf_counter())
    # The answer is whole. A moment for the body's end, so that the connection can serve again.
    with suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(_END_SECONDS):
            await response.content.readany()
