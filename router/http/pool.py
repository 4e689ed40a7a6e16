"""Connections to replicas: kept while they are idle, and every request sent over one of them."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from router.config import LimitOptions
from router.http.exchange import Exchange
from router.http.failures import Exhausted, Garbled, NotListening, Refused, Stopped
from router.http.files import is_local
from router.http.origin import Origin
from router.http.replica_connection import ReplicaConnection
from router.http.sweep import Sweep

# What a client that does not read can hold back at most, beside what the system's buffers hold.
_READ_BYTES = 64 * 1024


class Pool:
    """Sends requests to replicas. Built within a running event loop; `close` ends all connections."""

    def __init__(self, limits: Callable[[], LimitOptions]) -> None:
        self._limits = limits
        self._room = memoryview(bytearray(_READ_BYTES))
        self._idle: defaultdict[Origin, deque[ReplicaConnection]] = defaultdict(deque)
        self._busy: set[ReplicaConnection] = set()
        self._origins: dict[str, Origin] = {}
        self._tls: ssl.SSLContext | None = None
        self._cutting = False
        self._sweep = Sweep(self._look, self._shortest)

    @property
    def busy(self) -> int:
        """Connections over which an answer is awaited or comes in."""
        return len(self._busy)

    @property
    def idle(self) -> int:
        """Connections kept."""
        return sum(map(len, self._idle.values()))

    @property
    def cutting(self) -> bool:
        """Whether answers are broken off as the router ends."""
        return self._cutting

    def origin(self, url: str) -> Origin:
        """Return the place that a replica's URL names."""
        origin = self._origins.get(url)
        if origin is None:
            if len(self._origins) > 4096:
                # Fleets change: what is in use is back in no time.
                self._origins.clear()
            origin = self._origins[url] = Origin.of(url)
        return origin

    async def send(
        self, origin: Origin, parts: Sequence[bytes | memoryview], size: int, fresh: bool = False
    ) -> Exchange:
        """Send a request of `size` bytes and return its answer once its headers are here; else UpstreamError.

        `fresh` asks for a new connection, in place of the one kept longest. The caller closes the answer.
        """
        if fresh and (kept := self._idle.get(origin)):
            # No more are kept than were ever used at once.
            kept[0].give_up()
        connection = None if fresh else self._kept(origin)
        if connection is None:
            connection = await self._connect(origin)
        if self._cutting:
            connection.give_up()
            raise Stopped("the router ends")
        self._busy.add(connection)
        exchange = connection.send(parts, size)
        try:
            await exchange.head
        except BaseException:
            exchange.close()
            raise
        if 300 <= exchange.status < 400:
            exchange.close()
            raise Garbled(f"answered with a redirect ({exchange.status})")
        return exchange

    async def is_gone(self, origin: Origin) -> bool:
        """Say whether nobody listens there any more: then whatever ran there has ended.

        Of a host that cannot be reached, or found, nobody knows: it may run there still.
        """
        try:
            connection = await self._connect(origin)
        except NotListening:
            return True
        except (Refused, Exhausted):
            return False
        connection.give_up()
        return False

    def cut(self) -> None:
        """Break off all answers under way: the router has no time left for them."""
        self._cutting = True
        for connection in list(self._busy):
            if connection.exchange is not None:
                connection.exchange.break_off(Stopped("the router ends"))

    async def close(self) -> None:
        """Close all connections."""
        self.cut()
        self._sweep.stop()
        for kept in list(self._idle.values()):
            for connection in list(kept):
                connection.give_up()
        self._idle.clear()
        # Transports tell of their end in the next turns of the loop.
        for _ in range(3):
            await asyncio.sleep(0)

    def free(self, connection: ReplicaConnection) -> None:
        """Keep a connection for the next request."""
        self._busy.discard(connection)
        self._idle[connection.origin].append(connection)

    def gone(self, connection: ReplicaConnection) -> None:
        """Forget a connection."""
        self._busy.discard(connection)
        kept = self._idle.get(connection.origin)
        if kept is not None:
            if connection in kept:
                kept.remove(connection)
            # The last one may have been taken from it before: nobody knows whether another comes.
            if not kept:
                del self._idle[connection.origin]

    def _kept(self, origin: Origin) -> ReplicaConnection | None:
        """Return the connection that was used last: the others grow old, and are closed."""
        kept = self._idle.get(origin)
        if not kept:
            return None
        oldest = monotonic() - self._limits().idle_connection_seconds
        while kept:
            connection = kept.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.give_up()
        return None

    async def _connect(self, origin: Origin) -> ReplicaConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits().connect_seconds):
                _, connection = await loop.create_connection(
                    lambda: ReplicaConnection(origin, self._room, self),
                    origin.host,
                    origin.port,
                    ssl=self._context() if origin.tls else None,
                )
        except (OSError, TimeoutError) as error:
            if isinstance(error, OSError) and is_local(error):
                raise Exhausted(str(error)) from error
            kind = NotListening if isinstance(error, ConnectionRefusedError) else Refused
            raise kind(str(error) or "no connection in time") from error
        if not connection.usable:
            raise Refused("closed as soon as it was open")
        connection.idle_since = monotonic()
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _look(self) -> None:
        now, limits = monotonic(), self._limits()
        for connection in list(self._busy):
            if connection.exchange is not None:
                connection.exchange.look(now, limits)
        for kept in list(self._idle.values()):
            # The left end was used longest ago.
            while kept and kept[0].idle_since <= now - limits.idle_connection_seconds:
                kept[0].give_up()

    def _shortest(self) -> Iterable[float]:
        limits = self._limits()
        return limits.first_byte_seconds, limits.idle_seconds, limits.idle_connection_seconds
