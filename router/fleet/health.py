"""Whether a replica may be routed to: a small state machine without clock or sockets."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
# Who falls silent again so soon after coming back is not believed at once a second time.
_RELAPSE_SECONDS = 60.0

_FOREVER_AGO = float("-inf")


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

    Polls that nobody answers take it out until one is answered. Whoever answers polls and yet fails, is
    silent or far too slow is out for a pause that grows, and comes back half open: on trial until a request
    has been served, and out again, for longer, by the first that is not.
    """

    def __init__(self, failures_to_suspect: int, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after each change of standing, and when a trial has been passed."""
        # May be replaced while it runs.
        self.limit = failures_to_suspect
        # When bytes of an answer last came in.
        self.heard_at = _FOREVER_AGO
        # Why it is out, in words that tell no address; empty where the last probe says it all.
        self.why = ""
        self._probe_failures = 0
        self._answer_failures = 0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._paused_until = _FOREVER_AGO
        # When silence was held against it, which bytes heard since refute.
        self._silent_at = float("inf")
        self._timed_out = False
        self._on_trial = False
        self._back_at = _FOREVER_AGO
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

    @property
    def on_trial(self) -> bool:
        """Whether it came back half open, and no request has been served since."""
        return self._on_trial

    @property
    def doubted(self) -> bool:
        """Whether the last probe failed, of one that stands well so far: it is asked again at once."""
        return self._probe_failures > 0 and self._standing is Standing.READY

    def returns(self, now: float) -> bool:
        """Say whether a probe passed now ends a time out, so that a trial begins."""
        return self._timed_out and self._standing is not Standing.READY and self._pause_is_over(now)

    def probe_passed(self, now: float, draining: bool = False) -> None:
        """A probe was answered as it should be."""
        self._probe_failures = 0
        if draining:
            self.standing = Standing.DRAINING
        elif self._pause_is_over(now):
            if self._standing is not Standing.READY:
                self._come_back(now)
            self.standing = Standing.READY

    def probe_failed(self, now: float, asked_at: float) -> bool:
        """A probe timed out or was answered 5xx; say whether that is held against it as often as it takes.

        Who was heard from since it was asked is merely busy.
        """
        if self.heard_at >= asked_at:
            return False
        self._probe_failures += 1
        if self._probe_failures < self.limit or self._standing is Standing.JOINING:
            return False
        if self._standing in (Standing.READY, Standing.DRAINING):
            if now - self._back_at < _RELAPSE_SECONDS:
                self._time_out(now)
            self.why = ""
            self.standing = Standing.SUSPECT
        return True

    def not_ready(self) -> None:
        """A probe was answered, with "not yet": it loads, or knows that it is broken. Out at once."""
        self.standing = Standing.JOINING

    def restarted(self) -> None:
        """Another process answers at its address: nothing is held against it, and it has to show itself."""
        self._probe_failures = self._answer_failures = 0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._paused_until = self.heard_at = self._back_at = _FOREVER_AGO
        self._silent_at = float("inf")
        self._timed_out = self._on_trial = False
        self.why = ""
        self.standing = Standing.JOINING

    def unreachable(self) -> None:
        """A connection was refused or torn down: out at once, until a probe passes."""
        if self._standing is not Standing.JOINING:
            self.standing = Standing.DOWN

    def heard(self, now: float) -> None:
        """Bytes of an answer came in."""
        self.heard_at = now

    def answer_failed(self, now: float) -> None:
        """A request ended in a 500, a broken answer or silence past its limit."""
        self._answer_failures += 1
        if self._on_trial or self._answer_failures >= self.limit:
            self._take_out(now, "its last requests failed")

    def answer_succeeded(self) -> None:
        """A request was served. What was sent before it went out tells nothing of how it is now."""
        if self._standing is not Standing.READY:
            return
        self._answer_failures = 0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        if self._on_trial:
            self._on_trial = False
            self._changed()

    def silent(self, now: float) -> None:
        """It answers polls, and no request within what it announced: out for a pause, or until heard."""
        if self._take_out(now, "it answers no request within the time that it announced"):
            self._silent_at = now

    def slow(self, now: float) -> None:
        """It is far slower than expected, and its fleet is not."""
        self._take_out(now, "it became far slower than its fleet")

    def _take_out(self, now: float, why: str) -> bool:
        if self._standing is not Standing.READY:
            return False
        self._time_out(now)
        self.why = why
        self.standing = Standing.SUSPECT
        return True

    def _time_out(self, now: float) -> None:
        self._timed_out, self._on_trial = True, False
        self._silent_at = float("inf")
        self._paused_until = now + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _pause_is_over(self, now: float) -> bool:
        return now >= self._paused_until or self.heard_at > self._silent_at

    def _come_back(self, now: float) -> None:
        self._on_trial, self._timed_out = self._timed_out, False
        self._silent_at = float("inf")
        self._paused_until = _FOREVER_AGO
        self._answer_failures = 0
        if self._standing is Standing.SUSPECT:
            self._back_at = now
        self.why = ""
