"""Haste: polls ahead of their time, of replicas that fell silent, within a budget of their own."""

from __future__ import annotations

# Of the polls that a router may make, so many more may be made for that.
_SHARE = 0.25


class Haste:
    """A bucket of such polls: a second's worth at once, and then as many a second. Without a clock."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._at = float("-inf")

    def take(self, polls_per_second: float, now: float) -> bool:
        """Take one where there is one left, by a budget of so many polls for all purposes."""
        rate = _SHARE * polls_per_second
        self._spent = max(0.0, self._spent - rate * (now - self._at)) if self._spent else 0.0
        self._at = now
        if self._spent + 1.0 > max(1.0, rate):
            return False
        self._spent += 1.0
        return True
