"""Backlog: how many requests stand at a replica, of whom, and how long those that queue there must wait."""

from __future__ import annotations

from math import inf

_GAIN = 0.1
# A step lets in whoever has room: who stands for so much of a service time has none.
_STANDING_SHARE = 0.1


class Backlog:
    """What a replica last told of its requests, and what it was sent since.

    A queue is what stands there beyond the most that it was ever seen to run at once: requests that have just
    come are told as waiting, though the next step takes them in. How long it takes follows by Little's law:
    so many are served in the time that serving one takes. That holds whatever a replica is short of: slots,
    blocks or time; its work in seconds tells of prefill alone.
    """

    __slots__ = ("_abreast", "_service_seconds", "_since", "_there", "_waiting", "ended", "others", "sent")

    def __init__(self) -> None:
        # Requests told that are none of this router's.
        self.others = 0
        # Sent and ended since; counted by who sends.
        self.sent = self.ended = 0
        self._there = 0
        self._waiting = 0
        # The most that it ran at once.
        self._abreast = 0
        # From when on there was always a queue.
        self._since = inf
        self._service_seconds = 0.0

    @property
    def service_seconds(self) -> float:
        """How long requests take there, without the queue; 0 before one was served."""
        return self._service_seconds

    @property
    def queued(self) -> int:
        """How many wait for others to end. None, as far as known, where none was told to wait."""
        return max(0, self._there + self.sent - self.ended - self._abreast) if self._waiting else 0

    def told(self, running: int, waiting: int, in_flight: int, now: float) -> None:
        """Take what it tells of its requests, of which `in_flight` at most are this router's."""
        self._there, self._waiting = running + waiting, waiting
        self._abreast = max(self._abreast, running)
        # All that this router has there, or had since it told last, are taken for ones that it tells of: were
        # a few of them not, that leaves too much room, where a full house that is empty would stay shut.
        self.others = max(0, running + waiting - in_flight - self.ended)
        self.sent = self.ended = 0
        if not self.queued:
            self._since = inf
        elif self._since == inf:
            self._since = now

    def served(self, seconds: float, queued: int) -> None:
        """Note how long an answer took from when it was sent there, behind so many that queued."""
        abreast = max(1, self._abreast)
        gain = _GAIN if self._service_seconds else 1.0
        self._service_seconds += gain * (seconds * abreast / (abreast + queued) - self._service_seconds)

    def wait_seconds(self, now: float) -> float:
        """Return how long a request sent now would queue."""
        queued, service = self.queued, self._service_seconds
        if not queued or now - self._since < _STANDING_SHARE * service:
            return 0.0
        return queued * service / max(1, self._abreast)
