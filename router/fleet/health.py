"""Whether a replica may be routed to: a small state machine without clock or sockets."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0


class Standing(StrEnum):
    """`joining` says that it is not ready yet; `suspect` failed of late; `down` cannot be reached."""

    JOINING = "joining"
    READY = "ready"
    SUSPECT = "suspect"
    DOWN = "down"
    DRAINING = "draining"


class Health:
    """One replica's standing. Probes and traffic both bear witness; only a probe brings a replica back.

    A client's mistakes (4xx) and back-pressure (429, 503), as answers to requests, say nothing about health
    and are not told here. A probe that is answered 503 takes it out at once.
    """

    def __init__(self, failures_to_suspect: int, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after each change of standing."""
        # May be replaced while it runs.
        self.limit = failures_to_suspect
        self._probe_failures = 0
        self._answer_failures = 0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._paused_until = float("-inf")
        self._heard_at = float("-inf")
        self._standing = Standing.JOINING
        self._changed = changed

    @property
    def standing(self) -> Standing:
        """Where it stands."""
        return self._standing

    @standing.setter
    def standing(self, standing: Standing) -> None:
        if standing is not self._standing:
            self._standing = standing
            self._changed()

    def probe_passed(self, now: float, draining: bool = False) -> None:
        """A probe was answered as it should be."""
        self._probe_failures = 0
        if draining:
            self.standing = Standing.DRAINING
        elif now >= self._paused_until:
            if self.standing is Standing.SUSPECT and self._answer_failures:
                # On trial: one more failed answer takes it out again, for longer.
                self._answer_failures = self.limit - 1
            self.standing = Standing.READY

    def probe_failed(self, now: float, quiet_seconds: float) -> None:
        """A probe timed out or was answered 5xx. Who was heard from within `quiet_seconds` is merely busy."""
        if now - self._heard_at < quiet_seconds:
            return
        self._probe_failures += 1
        if self._probe_failures >= self.limit and self.standing in (Standing.READY, Standing.DRAINING):
            self.standing = Standing.SUSPECT

    def not_ready(self) -> None:
        """A probe was answered, with "not yet": it loads, or knows that it is broken. Out at once."""
        self.standing = Standing.JOINING

    def restarted(self) -> None:
        """Another process answers at its address: nothing is held against it, and it has to show itself."""
        self._probe_failures = self._answer_failures = 0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._paused_until = self._heard_at = float("-inf")
        self.standing = Standing.JOINING

    def unreachable(self) -> None:
        """A connection was refused or torn down: out at once, until a probe passes."""
        if self.standing is not Standing.JOINING:
            self.standing = Standing.DOWN

    def heard(self, now: float) -> None:
        """Bytes of an answer came in."""
        self._heard_at = now

    def answer_failed(self, now: float) -> None:
        """A request ended in a 500, a broken answer or silence past its limit."""
        self._answer_failures += 1
        if self._answer_failures >= self.limit and self.standing is Standing.READY:
            self.standing = Standing.SUSPECT
            self._paused_until = now + self._pause_seconds
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)

    def answer_succeeded(self) -> None:
        """A request was served."""
        self._answer_failures = 0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
