"""The retry budget: how many requests may be sent on, as a share of all that come."""

from __future__ import annotations

from router.config import LimitOptions


class RetryBudget:
    """Each request earns a share of a retry, up to a burst; who may spend none gets the answer as it is.

    It is for answers 429 and 503 alone: a replica was asked, and asking others multiplies the load of a fleet
    that is overloaded. Who could not be connected to has cost nothing.
    """

    def __init__(self, limits: LimitOptions) -> None:
        self._share = limits.retry_share
        self._most = float(limits.retry_burst)
        self._saved = self._most

    def alike(self, other: RetryBudget) -> bool:
        """Say whether both have the same options."""
        return (self._share, self._most) == (other._share, other._most)

    def earn(self) -> None:
        """Count a request."""
        if self._saved < self._most:
            self._saved = min(self._most, self._saved + self._share)

    def spend(self) -> bool:
        """Take one retry; False where there is none left."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
