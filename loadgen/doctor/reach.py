"""Asks over HTTP, within bounds, and says in plain words why there is no answer."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from time import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import orjson

from router.engines.engine import Answer, Get

_CONNECT_SECONDS, _ANSWER_SECONDS = 3.0, 10.0
# One who asks a whole fleet at once would be a load of its own.
_MOST_AT_ONCE = 16
# The metrics of a router with a thousand replicas; other pages are much smaller.
_LARGEST_BYTES = 16 * 1024 * 1024


class Silent(Exception):
    """There was no answer; the message says why, without any secret."""


@dataclass(frozen=True, slots=True)
class Skew:
    """By how many seconds another clock is ahead of ours, give or take `give_seconds`."""

    seconds: float
    give_seconds: float

    def beyond(self, limit_seconds: float) -> bool:
        """Whether it is off by more than `limit_seconds` for certain."""
        return abs(self.seconds) - self.give_seconds > limit_seconds


@dataclass(frozen=True, slots=True)
class Page:
    """One answer. `skew` is that of the clock that wrote its Date, None where it has none."""

    status: int
    content_type: str
    body: bytes = field(repr=False)
    skew: Skew | None = None

    def json(self) -> Any:
        """Return the body; Silent where it is no JSON."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise Silent(f"it answers {self.status} with what is no JSON") from error


class Reach:
    """Asks any number of addresses, a few at a time."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_connections=2 * _MOST_AT_ONCE, max_keepalive_connections=_MOST_AT_ONCE)
        timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS)
        self._http = httpx.AsyncClient(trust_env=False, timeout=timeout, limits=limits)
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def __aenter__(self) -> Self:
        """Open the connection pool."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def get(self, url: str, api_key: str | None = None) -> Page:
        """Return the answer of `url`, whatever its status; Silent where there is none in time."""
        try:
            async with self._turns, asyncio.timeout(_ANSWER_SECONDS):
                return await self._get(url, api_key)
        except TimeoutError as error:
            raise Silent(f"no answer within {_ANSWER_SECONDS:g} seconds") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise Silent(_words(error)) from error

    def of(self, url: str) -> Get:
        """Return what fetches paths of the server at `url`, as adapters of engines want it."""

        async def get(path: str) -> Answer:
            page = await self.get(url + path)
            return Answer(page.status, page.content_type, page.body)

        return get

    async def connects(self, host: str, port: int) -> str:
        """Return why nothing listens at a port; empty where something does."""
        try:
            async with self._turns, asyncio.timeout(_CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            return f"no answer within {_CONNECT_SECONDS:g} seconds"
        except (OSError, ValueError) as error:
            return _words(error)
        writer.transport.abort()
        return ""

    async def _get(self, url: str, api_key: str | None) -> Page:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else None
        asked_at = time()
        async with self._http.stream("GET", url, headers=headers) as response:
            answered_at = time()
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _LARGEST_BYTES:
                    raise ValueError(f"it answers more than {_LARGEST_BYTES >> 20} MiB")
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        skew = _skew(response.headers.get("date", ""), asked_at, answered_at)
        return Page(response.status_code, kind, bytes(body), skew)


def shown(url: str) -> str:
    """Return an address as it may be printed: without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _skew(date: str, asked_at: float, answered_at: float) -> Skew | None:
    try:
        told = parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
    # A Date is cut to whole seconds, and was written at some time between question and answer.
    return Skew(told + 0.5 - (asked_at + answered_at) / 2, 0.5 + (answered_at - asked_at) / 2)


def _words(error: Exception) -> str:
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 8:
        causes.append(cause)
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return f"TLS fails: {str(error)[:200]}"
    if isinstance(error, httpx.ConnectTimeout):
        return f"nobody accepts the connection within {_CONNECT_SECONDS:g} seconds"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {_ANSWER_SECONDS:g} seconds"
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes) or "refused" in str(error):
        return "the connection is refused"
    text = (str(error) or type(error).__name__)[:200]
    if "Name or service not known" in text or "Temporary failure in name resolution" in text:
        return "its name is not known to DNS"
    return text
