"""Reads what is left of an answer that nobody wants, where that is little: so its connection can be kept."""

from __future__ import annotations

import asyncio

from router.http.exchange import Exchange
from router.http.failures import UpstreamError

_MOST_BYTES = 16 * 1024
# Who asked for more is waiting: a new connection takes little longer.
_LONGEST_SECONDS = 0.05


class _Drain:
    """Takes a body, and keeps nothing. `over` is done at its end, or where it turns out to be long."""

    def __init__(self) -> None:
        self._left = _MOST_BYTES
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def received(self, data: bytes) -> None:
        """Count a piece."""
        self._left -= len(data)
        if self._left < 0:
            self.finished(None)

    def flush(self) -> None:
        """Nothing is kept."""

    def finished(self, error: UpstreamError | None) -> None:
        """Take the end."""
        if not self.over.done():
            self.over.set_result(None)


async def drain(exchange: Exchange) -> None:
    """Read an answer to its end, where that is near and comes soon. The caller closes it in any case."""
    if (exchange.content_length or 0) > _MOST_BYTES:
        return
    sink = _Drain()
    exchange.deliver(sink)
    if not sink.over.done():
        await asyncio.wait((sink.over,), timeout=_LONGEST_SECONDS)
