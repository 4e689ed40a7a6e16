"""What is awaited of one replica, and whether its silence is explained by that: without clock and sockets."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from router.fleet.health import Health, Standing

# Prefills take other than expected: so many times S is waited for beyond what was announced.
_PATIENCE = 3.0

_FOREVER_AGO = float("-inf")


class Stall:
    """Requests without a first byte, each with when one was to be expected. Times are of the caller's clock.

    A replica is hung where polls are not answered, or where they are and nothing else is. `watchers` are told
    of that, once each: those whose answers have begun there, and who may go on elsewhere.
    """

    __slots__ = (
        "_awaited",
        "_health",
        "_moved_at",
        "_observed",
        "_running",
        "_usage",
        "_work_seconds",
        "watchers",
    )

    def __init__(self, health: Health, observed: Callable[[float, float, float], None]) -> None:
        """`observed` gets seconds to a first byte, as they were and as expected, and when that was."""
        self.watchers: set[Callable[[], None]] = set()
        self._health = health
        # By lease: when it was sent, the wait and the patience that were due then, and whether it streams.
        self._awaited: dict[Hashable, tuple[float, float, float, bool]] = {}
        self._observed = observed
        # What was last told, and when that last showed that something is done there.
        self._work_seconds = 0.0
        self._running = 0
        self._usage = 0.0
        self._moved_at = _FOREVER_AGO

    def __len__(self) -> int:
        return len(self._awaited)

    def sent(
        self, lease: Hashable, wait_seconds: float, prefill_seconds: float, now: float, streamed: bool
    ) -> None:
        """Note a request that is sent, which was to wait and to be computed for so long.

        Of an answer that comes whole, the first byte is the last: its silence is held against nobody.
        """
        self._awaited[lease] = (now, wait_seconds, _PATIENCE * prefill_seconds, streamed)

    def began(self, lease: Hashable, now: float) -> None:
        """Note the first byte of a good answer; a second call does nothing."""
        awaited = self._awaited.pop(lease, None)
        if awaited is not None and awaited[3]:
            sent_at, wait, patience, _ = awaited
            self._observed(now - sent_at, wait + patience / _PATIENCE, now)

    def ended(self, lease: Hashable) -> None:
        """Note that a request is over, or was answered otherwise than well."""
        self._awaited.pop(lease, None)

    def clear(self) -> None:
        """Judge by none of what was sent so far: it was held against the replica once."""
        self._awaited.clear()

    def told(self, work_seconds: float, running: int, kv_usage: float, now: float) -> None:
        """Take what a poll was told. Whoever did something since the last has not stalled.

        How many wait is no sign: requests may be let in by one part while the part that computes is stuck.
        """
        if work_seconds < self._work_seconds or running != self._running or kv_usage != self._usage:
            self._moved_at = now
        self._work_seconds, self._running, self._usage = work_seconds, running, kv_usage

    @property
    def silent_since(self) -> float | None:
        """Since when nothing came; None where nothing was heard, and nothing is awaited."""
        heard_at, oldest = self._health.heard_at, next(iter(self._awaited.values()), None)
        since = heard_at if oldest is None else max(heard_at, oldest[0])
        return None if since == _FOREVER_AGO else since

    def unanswered(self, asked_at: float, now: float, busy_seconds: float) -> None:
        """Note that a poll got no answer in time. As often as it takes, and the replica is hung.

        Of an engine that may not answer while it computes, prompts that were sent explain it for
        `busy_seconds` at most; 0 where polls are answered whatever is computed.
        """
        if busy_seconds > 0 and self._explained(now, busy_seconds):
            return
        if self._health.probe_failed(now, asked_at):
            self._hung()

    def judge(self, now: float, silence_seconds: float) -> None:
        """Take the replica out where it answers polls, and no request within what it announced.

        That is the wait announced, when it was sent or since, and three times S, of a request that streams;
        silence shorter than `silence_seconds`, or while reports tell of something done, is none.
        """
        if self._health.standing is Standing.READY and self._overdue(now, silence_seconds):
            self._health.silent(now)
            self._hung()

    def _explained(self, now: float, most_seconds: float) -> bool:
        heard_at = self._health.heard_at
        return any(
            now - max(sent_at, heard_at) < min(most_seconds, wait + patience)
            for sent_at, wait, patience, _ in self._awaited.values()
        )

    def _overdue(self, now: float, least_seconds: float) -> bool:
        alive_at = max(self._health.heard_at, self._moved_at)
        return any(
            streamed
            and now - max(sent_at, alive_at) > max(least_seconds, max(wait, self._work_seconds) + patience)
            for sent_at, wait, patience, streamed in self._awaited.values()
        )

    def _hung(self) -> None:
        self.clear()
        watchers, self.watchers = self.watchers, set()
        for call in watchers:
            call()
