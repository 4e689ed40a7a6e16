"""Upstream: sends a request to one replica, and says in which of few ways that failed."""

from __future__ import annotations

import asyncio
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import aiohttp
from multidict import CIMultiDict

from router.config import LimitOptions

# Larger bodies are written piece by piece, so that other requests get their turn in between.
_WHOLE_BYTES = 256 * 1024


class UpstreamError(Exception):
    """A request to a replica failed before its answer began."""


class Refused(UpstreamError):
    """No connection: the replica never saw the request."""


class Vanished(UpstreamError):
    """The connection ended, by reset or end of file, before any byte of an answer.

    `reused` says that it was one kept from before, which the replica may have closed just then.
    """

    def __init__(self, message: str, reused: bool) -> None:
        super().__init__(message)
        self.reused = reused


class Silent(UpstreamError):
    """No answer in time. The replica may be computing it: never sent again."""


class Garbled(UpstreamError):
    """What came back is not HTTP, or a redirect, which no replica has cause to send."""


class Stopped(UpstreamError):
    """This router ends, and has no time left to wait for the answer."""


class Upstream:
    """Pooled connections to the replicas; `close` ends them."""

    def __init__(self, limits: LimitOptions) -> None:
        # May be replaced while it runs, but for how long connections are kept.
        self.limits = limits
        self._cutting = False
        self._waiting: set[asyncio.Task[Any]] = set()
        self._answers: WeakSet[aiohttp.ClientResponse] = WeakSet()
        self._pooled = self._session(
            aiohttp.TCPConnector(limit=0, keepalive_timeout=limits.idle_connection_seconds, ttl_dns_cache=10)
        )
        self._fresh = self._session(aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=10))

    def cut(self) -> None:
        """Break off all answers under way: the router has no time left for them."""
        self._cutting = True
        for waiting in self._waiting:
            waiting.cancel()
        for answer in list(self._answers):
            answer.close()

    def is_cutting(self) -> bool:
        """Say whether answers are broken off as the router ends."""
        return self._cutting

    async def close(self) -> None:
        """Close all connections."""
        await self._pooled.close()
        await self._fresh.close()

    async def send(
        self, url: str, body: bytes, headers: CIMultiDict[str], fresh: bool = False
    ) -> aiohttp.ClientResponse:
        """Post the request and return the answer once its headers are here; UpstreamError otherwise.

        `fresh` asks for a connection of its own. The caller closes or releases the answer.
        """
        session = self._fresh if fresh else self._pooled
        connection = SimpleNamespace(reused=False)
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            async with asyncio.timeout(self.limits.first_byte_seconds):
                answer = await session.post(
                    url,
                    data=BytesIO(body) if len(body) > _WHOLE_BYTES else body,
                    headers=headers,
                    allow_redirects=False,
                    trace_request_ctx=connection,
                    timeout=self._timeout(),
                )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Refused(str(error)) from error
        except TimeoutError as error:
            raise Silent(f"no answer within {self.limits.first_byte_seconds:g} s") from error
        except aiohttp.ServerDisconnectedError as error:
            if not isinstance(error.message, str):
                # aiohttp hands over what it had parsed: an answer had begun, so the request did run.
                raise Garbled("the answer broke off in its headers") from error
            raise Vanished(str(error), connection.reused) from error
        except aiohttp.ClientOSError as error:
            raise Vanished(str(error) or type(error).__name__, connection.reused) from error
        except aiohttp.ClientError as error:
            raise Garbled(str(error)) from error
        except asyncio.CancelledError as error:
            if not self._cutting or task.uncancel():
                raise
            raise Stopped("the router ends") from error
        finally:
            self._waiting.discard(task)
        if 300 <= answer.status < 400:
            answer.close()
            raise Garbled(f"answered with a redirect ({answer.status})")
        self._answers.add(answer)
        return answer

    def _timeout(self) -> aiohttp.ClientTimeout:
        # Streams last as long as they last: waits are bounded where they are made.
        return aiohttp.ClientTimeout(total=None, sock_connect=self.limits.connect_seconds)

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        return aiohttp.ClientSession(
            connector=connector,
            # Bytes and their Content-Encoding pass together.
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Content-Type"),
            trust_env=False,
            trace_configs=[trace],
        )


async def _note_reuse(session: aiohttp.ClientSession, context: SimpleNamespace, parameters: Any) -> None:
    context.trace_request_ctx.reused = True
