"""One client's connection: serves what is read from it, one reply after the other, within limits of time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import cast

from router.config import LimitOptions
from router.http.reply import Admit, Handler, Reply
from router.http.request import Request
from router.http.request_reader import RequestReader
from router.wire.errors import ApiError

log = logging.getLogger("kvring.http")

# Above this a reply's source is paused until the client has read all but a quarter.
_UNREAD_BYTES = 64 * 1024
# How long a client that was refused in mid-request may go on sending: closed at once, it would not see why.
_LINGER_SECONDS = 2.0


class Connection(RequestReader):
    """Serves one client, one request after the other."""

    __slots__ = ("_handler", "_here", "_keep_alive", "_task", "_unread", "paused")

    def __init__(
        self,
        handler: Handler,
        limits: Callable[[], LimitOptions],
        room: memoryview,
        here: set[Connection],
        admit: Admit,
    ) -> None:
        """`here` are the connections of the server: this one is among them while it is open."""
        super().__init__(limits, room, admit)
        self._handler = handler
        self._here = here
        self._task: asyncio.Task[None] | None = None
        self._keep_alive = True
        # Whether the client does not read.
        self.paused = False
        self._unread = 0

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNREAD_BYTES)
        peer = self._transport.get_extra_info("peername")
        self._remote = peer[0] if isinstance(peer, tuple) else None
        self._deadline = monotonic() + self._limits().idle_client_seconds
        self._here.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Whoever is being served has left."""
        self._here.discard(self)
        self._ahead.clear()
        self._forget_parser()
        if self._task is not None and self._reply is not None:
            self._reply.lost()
            self._task.cancel()

    def eof_received(self) -> bool:
        """Close: a client that sends no more is taken to have left, even one that shut down only its sending.

        Who leaves and who half-closes look alike until something is written, and the answer of a client that
        has left costs a replica seconds. Other proxies do the same.
        """
        if self._reply is not None and not self._reply.ended:
            self._transport.abort()
        elif not self._transport.is_closing():
            self._close()
        return False

    def pause_writing(self) -> None:
        """The client does not read: whoever sends to it waits."""
        self.paused = True
        self._await_reading()
        if self._reply is not None and self._reply.source is not None:
            self._reply.source.pause()

    def resume_writing(self) -> None:
        """The client has read."""
        self.paused = False
        if self._transport.is_closing():
            return
        if self._reply is not None:
            self._deadline = inf
            if self._reply.source is not None:
                self._reply.source.resume()
        elif self._ahead:
            self._serve(self._ahead.pop(0))
        elif self._lingering:
            self._deadline = monotonic() + _LINGER_SECONDS
        else:
            self._deadline = self._idle_until()

    # Serving.

    def _serve(self, request: Request) -> None:
        self._deadline = inf
        if not self._ahead:
            self._ahead_bytes = 0
        keep_alive = request.keep_alive and self._keep_alive
        self._reply = reply = Reply(self, keep_alive, request.http_1_0, request.method == "HEAD")
        self._task = asyncio.get_running_loop().create_task(self._run(request, reply))

    async def _run(self, request: Request, reply: Reply) -> None:
        try:
            await self._handler(request, reply)
        except Exception:
            log.exception("a fault while answering %s", request.method)
        finally:
            self._task = None
            if not reply.ended:
                reply.break_off()
            self._served(reply)

    def _served(self, reply: Reply) -> None:
        self._reply = None
        if self._transport.is_closing():
            self._close()
        elif self._ahead and reply.keep_alive:
            if not self.paused:
                self._serve(self._ahead.pop(0))
        elif self._lingering:
            self._linger()
        elif not reply.keep_alive:
            self._close()
        elif not self.paused:
            self._deadline = self._idle_until()
        # Who has not read its answer does so within the limit of pause_writing before anything else.

    def _linger(self) -> None:
        """Let the client read why, and end its sending."""
        self._deadline = monotonic() + (self._limits().write_seconds if self.paused else _LINGER_SECONDS)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    # What replies and the server call.

    def write(self, data: bytes) -> None:
        """Send bytes of the reply; to a client that left, nothing is sent."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def break_off(self) -> None:
        """Close behind what was sent."""
        self._keep_alive = False
        self._close()

    def retire(self) -> None:
        """Serve what has begun, and nothing else."""
        self._keep_alive = False
        if self._reply is not None:
            self._reply.keep_alive = self._reply.keep_alive and self._reply.started
        elif not self._in_head and self._request is None:
            self._close()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def look(self, now: float) -> None:
        """Hold the limits of time."""
        if now < self._deadline:
            return
        if self.paused or self._transport.is_closing():
            if self._transport.get_write_buffer_size() < self._unread:
                # Slow, but it reads.
                self._await_reading()
            else:
                self._transport.abort()
        elif self._lingering or self._reply is not None:
            self._transport.abort()
        elif self._request is not None:
            self._refuse(ApiError(408, f"the body did not arrive within {self._limits().body_seconds:g} s"))
        elif self._in_head:
            self._refuse(ApiError(408, "the request's headers did not arrive in time"))
        else:
            self._close()

    def _close(self) -> None:
        """Close once all that was written has been read; within the limit for that."""
        self._await_reading()
        self._transport.close()

    def _await_reading(self) -> None:
        self._unread = self._transport.get_write_buffer_size()
        self._deadline = monotonic() + self._limits().write_seconds

    def _idle_until(self) -> float:
        limits = self._limits()
        if self._request is not None:
            return monotonic() + limits.body_seconds
        return monotonic() + (limits.header_seconds if self._in_head else limits.idle_client_seconds)
