"""Asks one text completion as a stream: when its first token came, what the cache spared, who answered."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from loadgen.client import REPLICA_HEADER, Answer, ClientLimits
from loadgen.stream import StreamFault
from router.wire.sse import EventCutter, event_data


class CompletionReader:
    """Takes the bytes of one stream of completion chunks; keeps no text. Times are the caller's."""

    def __init__(self) -> None:
        self.first_token_at: float | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.answer_tokens: int | None = None
        self.done = False
        self._finished = False
        self._cutter = EventCutter()

    def feed(self, chunk: bytes, now: float) -> None:
        """Take bytes that came at `now`; StreamFault for an error event or what is no completion chunk."""
        for event in self._cutter.feed(chunk):
            data = event_data(event)
            if self.done or data is None:
                continue
            if data == b"[DONE]":
                self.done = True
            else:
                self._take(data, now)

    def finish(self) -> None:
        """Say that the stream ended; StreamFault unless it was whole."""
        if not (self.done and self._finished):
            lacking = "a finish_reason" if self.done else "[DONE]"
            raise StreamFault("truncated", f"the stream ended without {lacking}")

    def _take(self, data: bytes, now: float) -> None:
        try:
            chunk = orjson.loads(data)
            if chunk.get("error") is not None:
                raise StreamFault("in_band", data.decode(errors="replace"))
            self._usage(chunk.get("usage"))
            for choice in chunk.get("choices") or ():
                self._finished = self._finished or choice.get("finish_reason") is not None
                # A token may have no text of its own: the end is the latest moment it can have come.
                if self.first_token_at is None and (choice.get("text") or self._finished):
                    self.first_token_at = now
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise StreamFault("malformed", f"an event is not a completion chunk: {data[:200]!r}") from error

    def _usage(self, usage: Mapping[str, Any] | None) -> None:
        if usage is None:
            return
        self.prompt_tokens = int(usage["prompt_tokens"])
        self.answer_tokens = int(usage["completion_tokens"])
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        self.cached_tokens = None if cached is None else int(cached)


class CompletionClient:
    """Talks to one OpenAI-compatible address. Connections are without limit: who asks bounds them."""

    def __init__(self, url: str, limits: ClientLimits, api_key: str | None = None) -> None:
        """`url` is the address below `/v1`."""
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1/completions"
        self._limits = limits
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the connection pool."""
        limits = self._limits
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(
                total=limits.total_seconds,
                sock_connect=limits.connect_seconds,
                sock_read=limits.idle_seconds,
            ),
            headers={"Content-Type": "application/json", **self._headers},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.close()

    async def ask(self, body: Mapping[str, Any], session: str | None = None) -> Answer:
        """Send a completion; failures come back in the answer, only a cancel is raised."""
        if self._http is None:
            raise RuntimeError("the client is not open")
        reader = CompletionReader()
        replica: str | None = None
        error: str | None = None
        message = ""
        payload = orjson.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
        headers = {"x-session-id": session} if session is not None else {}
        sent = perf_counter()
        try:
            async with self._http.post(
                self._url, data=payload, headers=headers, allow_redirects=False
            ) as response:
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
        return Answer(
            replica=replica,
            prompt_tokens=reader.prompt_tokens,
            cached_tokens=reader.cached_tokens,
            answer_tokens=reader.answer_tokens,
            first_token_seconds=None if reader.first_token_at is None else reader.first_token_at - sent,
            total_seconds=perf_counter() - sent,
            error=error,
            message=message[:500],
        )


async def _read(response: aiohttp.ClientResponse, reader: CompletionReader) -> None:
    if response.status != 200:
        # The first kilobytes tell what is wrong; an error page may be endless.
        text = (await response.content.read(4096)).decode(errors="replace")
        raise StreamFault(f"http_{response.status}", text)
    if response.content_type != "text/event-stream":
        raise StreamFault("not_a_stream", f"the answer is {response.content_type}")
    async for chunk in response.content.iter_any():
        reader.feed(chunk, perf_counter())
    reader.finish()
