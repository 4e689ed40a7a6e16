"""The listener: accepts clients, and ends their connections in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import monotonic

from router.config import LimitOptions
from router.http.connection import Connection
from router.http.files import most_clients
from router.http.reply import Admit, Handler, admit_all
from router.http.sweep import Sweep
from router.http.turned_away import TurnedAway

log = logging.getLogger("kvring.http")

# One read takes a whole long chat.
_READ_BYTES = 256 * 1024
_BACKLOG = 1024
_FEW_LEAVING = 8


class HttpServer:
    """Serves HTTP/1.1 by a handler. It keeps limits on all that clients do; the handler, on what it does."""

    def __init__(
        self, handler: Handler, limits: Callable[[], LimitOptions], admit: Admit = admit_all
    ) -> None:
        self._handler = handler
        self._admit = admit
        self._limits = limits
        self._room = memoryview(bytearray(_READ_BYTES))
        self._connections: set[Connection] = set()
        self._most = 0
        self._turned_away = 0
        self._leaving: set[TurnedAway] = set()
        self._server: asyncio.Server | None = None
        self._sweep: Sweep | None = None

    @property
    def connections(self) -> int:
        """Clients connected."""
        return len(self._connections)

    async def listen(self, host: str, port: int, reuse_port: bool = False) -> str:
        """Begin to listen; return the address as a URL. OSError where that cannot be."""
        self._most = most_clients(self._limits().in_flight)
        self._server = await asyncio.get_running_loop().create_server(
            self._accept,
            host,
            port,
            backlog=_BACKLOG,
            reuse_port=reuse_port or None,
        )
        self._sweep = Sweep(self._look, self._shortest)
        bound, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{f'[{bound}]' if ':' in bound else bound}:{port}"

    async def close(self, grace_seconds: float = 0.5) -> None:
        """Stop listening; what is being served may end within the grace."""
        if self._server is None or self._sweep is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.retire()
        until = monotonic() + grace_seconds
        while self._connections and monotonic() < until:  # noqa: ASYNC110 - they go one by one
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()
        for leaving in list(self._leaving):
            leaving.abort()
        # Aborted connections tell those who serve them in the next turns of the loop.
        for _ in range(3):
            await asyncio.sleep(0)
        self._sweep.stop()
        await self._server.wait_closed()

    def _accept(self) -> asyncio.BaseProtocol:
        if len(self._connections) < self._most:
            return Connection(self._handler, self._limits, self._room, self._connections, self._admit)
        self._turned_away += 1
        # Each that lingers takes a file, of which there are too few already.
        return TurnedAway(self._leaving, len(self._leaving) < max(_FEW_LEAVING, self._most // 64))

    def _look(self) -> None:
        if self._turned_away:
            log.warning("%d clients turned away: %d are connected", self._turned_away, self._most)
            self._turned_away = 0
        self._most = most_clients(self._limits().in_flight)
        now = monotonic()
        for connection in list(self._connections):
            connection.look(now)

    def _shortest(self) -> Iterable[float]:
        limits = self._limits()
        return limits.header_seconds, limits.body_seconds, limits.idle_client_seconds, limits.write_seconds
