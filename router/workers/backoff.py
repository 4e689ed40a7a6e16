"""Backoff: when a worker that died is started again; soon, but not over and over at once."""

from __future__ import annotations

_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 30.0
# One that served for so long has not died of being started.
_SOUND_SECONDS = 10.0


class Backoff:
    """For one worker. `at` is when it is due, None for never."""

    def __init__(self) -> None:
        self.at: float | None = None
        self._pause = _FIRST_SECONDS

    def begin(self, started_at: float | None, now: float) -> float:
        """Note that it died, having served since `started_at` (None: never); return the pause in seconds."""
        if started_at is not None and now - started_at >= _SOUND_SECONDS:
            self._pause = _FIRST_SECONDS
        pause = self._pause
        self.at = now + pause
        self._pause = min(2 * pause, _LONGEST_SECONDS)
        return pause

    def due(self, now: float) -> bool:
        """Say, once, that it is time."""
        if self.at is None or self.at > now:
            return False
        self.at = None
        return True

    def cancel(self) -> None:
        """Let it be."""
        self.at = None
