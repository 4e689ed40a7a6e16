"""One request to a replica, and its answer as it comes."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol

from router.config import LimitOptions
from router.http.failures import Garbled, Silent, UpstreamError
from router.http.headers import Headers

# What is kept of an answer that nobody takes yet, before its replica is paused.
_MOST_EARLY_BYTES = 64 * 1024


class Sink(Protocol):
    """Where an answer's body goes."""

    def received(self, data: bytes) -> None:
        """Take a piece of the body."""

    def flush(self) -> None:
        """Note that no more can be had at once."""

    def finished(self, error: UpstreamError | None) -> None:
        """Note the end of the answer, or why it ended before that. Called once."""


class Carrier(Protocol):
    """What an answer comes over: a connection, as long as it is that answer's."""

    def pause(self) -> None:
        """Read nothing."""

    def resume(self) -> None:
        """Read on."""

    def give_up(self) -> None:
        """Close now, whatever is under way."""


class Exchange:
    """An answer on its way. `head` is done once `status` and `headers` are there, or fails as UpstreamError.

    Who takes the body gives a sink to `deliver`; until then it is kept, and the replica soon paused. `close`
    ends it at any time, and gives the connection up where the answer is not whole.
    """

    __slots__ = (
        "_connection",
        "_early",
        "_early_bytes",
        "_error",
        "_full",
        "_held",
        "_over",
        "_sink",
        "content_type",
        "head",
        "headers",
        "heard_at",
        "paused",
        "reused",
        "sent_at",
        "status",
    )

    def __init__(self, connection: Carrier, reused: bool) -> None:
        self._connection: Carrier | None = connection
        self._sink: Sink | None = None
        self._early: list[bytes] = []
        self._early_bytes = 0
        self._error: UpstreamError | None = None
        self._over = False
        # Why it may be paused: what came has nowhere to go yet, or whoever it goes to asked for it.
        self._full = False
        self._held = False
        self.head: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.headers = Headers()
        # The media type of the body, without parameters.
        self.content_type = b""
        self.reused = reused
        self.sent_at = self.heard_at = monotonic()
        self.paused = False

    @property
    def content_length(self) -> int | None:
        """The length of the body where it is told."""
        length = self.headers.bytes.get(b"content-length")
        return int(length) if length is not None else None

    def deliver(self, sink: Sink) -> None:
        """Give the body to `sink`: what is here already now, the rest as it comes."""
        self._sink = sink
        early, self._early = self._early, []
        for piece in early:
            sink.received(piece)
            if self._sink is not sink:
                # Broken off by what was in that piece: the sink has been told.
                return
        if early:
            sink.flush()
        if self._over:
            self.over(self._error)
        elif self._full:
            self._full = False
            self._settle()

    def pause(self) -> None:
        """Let the replica wait."""
        self._held = True
        self._settle()

    def resume(self) -> None:
        """Let it go on."""
        self._held = False
        self._settle()

    def close(self) -> None:
        """Take nothing more."""
        self._sink = None
        self._over = True
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.give_up()

    def break_off(self, error: UpstreamError) -> None:
        """End it as failed, and give up the connection."""
        connection = self._connection
        self.over(error)
        if connection is not None:
            connection.give_up()

    def look(self, now: float, limits: LimitOptions) -> None:
        """Hold the limits of time: one for the first byte of the head and of the body, another in between."""
        limit = limits.idle_seconds if self.status and self._early_bytes else limits.first_byte_seconds
        if not self.paused and now - self.heard_at >= limit:
            self.break_off(Silent(f"no answer within {limit:g} s"))

    # What the connection calls.

    def received(self, data: bytes) -> None:
        """Take a piece of the body."""
        self._early_bytes += len(data)
        if self._sink is not None:
            self._sink.received(data)
            return
        self._early.append(data)
        if self._early_bytes > _MOST_EARLY_BYTES:
            self._full = True
            self._settle()

    def flush(self) -> None:
        """Note the end of what was read."""
        if self._sink is not None:
            self._sink.flush()

    def over(self, error: UpstreamError | None) -> None:
        """Note the end. The connection is somebody else's from now on."""
        if self._over and self._sink is None:
            return
        self._over = True
        self._connection = None
        self._error = error
        if not self.head.done():
            self.head.set_exception(error or Garbled("an answer without a head"))
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.finished(error)

    def _settle(self) -> None:
        """Pause or go on, as there are reasons to pause or none."""
        paused = self._held or self._full
        if paused == self.paused or self._connection is None:
            return
        self.paused = paused
        if paused:
            self._connection.pause()
        else:
            self.heard_at = monotonic()
            self._connection.resume()
