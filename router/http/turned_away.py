"""What a client gets that comes when too many are connected: told so, and closed."""

from __future__ import annotations

import asyncio
from typing import cast

from router.wire.errors import ApiError, Source

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
    """One connection over the limit. Nothing of it is read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer, and close: so little is in the kernel's hands at once."""
        answered = cast(asyncio.Transport, transport)
        answered.write(_ANSWER)
        answered.close()
