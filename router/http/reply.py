"""The reply to one request: a status and headers, then a body of known length or in chunks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from time import time
from typing import Protocol

from router.http.headers import Field
from router.http.request import Request
from router.wire.errors import ApiError

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_WITHOUT_BODY = frozenset((204, 304))


class Wire(Protocol):
    """Where replies are written to: the connection of the client."""

    @property
    def paused(self) -> bool:
        """Whether the client does not read."""

    def write(self, data: bytes) -> None:
        """Send bytes, soon."""

    def break_off(self) -> None:
        """Close without what would end the reply, once what was written is sent."""


class Throttled(Protocol):
    """What fills a reply, and waits while the client does not read."""

    def pause(self) -> None:
        """Send nothing until `resume`."""

    def resume(self) -> None:
        """Go on."""


class Reply:
    """Written by whoever serves the request: `whole`, or `start`, any number of `write`, and `end`."""

    __slots__ = ("_bodiless", "_chunked", "_head", "_wire", "ended", "keep_alive", "source", "started")

    def __init__(self, wire: Wire, keep_alive: bool, http_1_0: bool, head: bool) -> None:
        """`http_1_0` is for clients who know no chunks, `head` for those who asked without wanting a body."""
        self._wire = wire
        self._chunked = not http_1_0
        self._head = head
        self._bodiless = False
        self.keep_alive = keep_alive and not http_1_0
        self.started = False
        self.ended = False
        # Paused while the client does not read.
        self.source: Throttled | None = None

    def fill_from(self, source: Throttled | None) -> None:
        """Name who fills it from now on, and shall be paused while the client does not read."""
        self.source = source
        if source is not None and self._wire.paused:
            source.pause()

    def lost(self) -> None:
        """Take nothing more from the source: nobody reads it, and it is soon closed."""
        if self.source is not None:
            self.source.pause()

    def whole(self, status: int, headers: Iterable[Field], body: bytes) -> None:
        """Send all of it at once."""
        self.started = self.ended = True
        head = self._top(status, headers)
        if status not in _WITHOUT_BODY:
            head.append(b"content-length: %d\r\n" % len(body))
        head.append(b"\r\n")
        if not self._head and status not in _WITHOUT_BODY:
            head.append(body)
        self._wire.write(b"".join(head))

    def start(self, status: int, headers: Iterable[Field], length: int | None) -> None:
        """Send the head; `length` is that of the body, None where it is not known."""
        self.started = True
        self._bodiless = self._head or status in _WITHOUT_BODY
        if length is None and not self._chunked and not self._bodiless:
            # The end of the connection will be the end of the body.
            self.keep_alive = False
        head = self._top(status, headers)
        if status in _WITHOUT_BODY:
            self._chunked = False
        elif length is not None:
            self._chunked = False
            head.append(b"content-length: %d\r\n" % length)
        elif self._chunked:
            head.append(b"transfer-encoding: chunked\r\n")
        head.append(b"\r\n")
        self._wire.write(b"".join(head))

    def write(self, data: bytes) -> None:
        """Send a piece of the body, which is not empty."""
        if self._bodiless:
            return
        self._wire.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        """End the body where it ends."""
        self.ended = True
        if self._chunked and not self._bodiless:
            self._wire.write(b"0\r\n\r\n")

    def break_off(self) -> None:
        """End the connection, so that nobody takes the body for whole."""
        self.ended = True
        self.keep_alive = False
        self._wire.break_off()

    def _top(self, status: int, headers: Iterable[Field]) -> list[bytes]:
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        top = [line, _date_line(int(time()))]
        top += [b"%b: %b\r\n" % field for field in headers]
        if not self.keep_alive:
            top.append(b"connection: close\r\n")
        return top


Handler = Callable[[Request, Reply], Awaitable[None]]
# Says why a request is refused by its head, so that its body need not be sent.
Admit = Callable[[Request], ApiError | None]


def admit_all(_: Request) -> None:
    """Refuse nobody."""


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    return b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
