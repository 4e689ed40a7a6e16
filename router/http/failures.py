"""In which of few ways a request to a replica fails."""

from __future__ import annotations


class UpstreamError(Exception):
    """A request to a replica failed."""


class Refused(UpstreamError):
    """No connection: the replica never saw the request."""


class NotListening(Refused):
    """Refused by the host: nobody listens there, so that nothing runs there either."""


class Vanished(UpstreamError):
    """The connection ended, by reset or end of file, before any byte of an answer.

    `stale` says that it had been kept from before and ended at once: the replica had closed it already, most
    likely, and saw no request.
    """

    def __init__(self, message: str, stale: bool) -> None:
        super().__init__(message)
        self.stale = stale


class Silent(UpstreamError):
    """No answer, or nothing more of it, in time. The replica may be computing it: never sent again."""


class Garbled(UpstreamError):
    """What came back is not HTTP, or a redirect, which no replica has cause to send."""


class BrokenOff(UpstreamError):
    """The answer ended before its end."""


class Stalled(UpstreamError):
    """The replica does not move any more, by all that is known of it."""


class Exhausted(UpstreamError):
    """No connection for want of something on this side, such as files: no replica has a part in it."""


class Stopped(UpstreamError):
    """This router ends, and has no time left to wait for the answer."""
