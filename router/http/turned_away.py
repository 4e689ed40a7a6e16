"""What a client gets that comes when too many are connected: told so, and closed."""

from __future__ import annotations

import asyncio
from typing import cast

from router.wire.errors import ApiError, Source

_LINGER_SECONDS = 1.0
_MOST_READ_BYTES = 1024 * 1024

_ERROR = ApiError(503, "too many clients are connected", source=Source.ROUTER, retry_after_seconds=2)
_ANSWER = b"HTTP/1.1 503 Service Unavailable\r\n%bcontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
    b"".join(
        f"{name}: {value}\r\n".encode()
        for name, value in {"content-type": "application/json", **_ERROR.headers()}.items()
    ),
    len(_ERROR.body()),
    _ERROR.body(),
)


class TurnedAway(asyncio.Protocol):
    """One connection over the limit. What it sends is read, for a while, and dropped."""

    def __init__(self, leaving: set[TurnedAway], lingers: bool) -> None:
        """`leaving` are those that were answered and wait to be closed, as this one does if it `lingers`."""
        self._leaving = leaving
        self._lingers = lingers
        self._transport = cast(asyncio.Transport, None)
        self._end: asyncio.TimerHandle | None = None
        self._read_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer; closed at once over bytes that were not read, it would not be seen."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(_ANSWER)
        if not self._lingers:
            self._transport.close()
            return
        self._leaving.add(self)
        self._transport.write_eof()
        self._end = asyncio.get_running_loop().call_later(_LINGER_SECONDS, self.abort)

    def data_received(self, data: bytes) -> None:
        """Drop it."""
        self._read_bytes += len(data)
        if self._read_bytes > _MOST_READ_BYTES:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Forget it."""
        self._leaving.discard(self)
        if self._end is not None:
            self._end.cancel()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()
