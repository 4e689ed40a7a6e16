"""What a source does while nobody answers it: it waits longer and longer, and says so once."""

from __future__ import annotations

import logging
import random

log = logging.getLogger("kvring.fleet")

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0
# Of one outage: a second reason may be the one to act on, a hundredth never is.
_MOST_REASONS = 4
_MOST_LETTERS = 500


class Outage:
    """The times at which `subject`, such as a name server, gives no answer."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._reasons: set[str] = set()
        self._next_seconds = _FIRST_SECONDS
        self.lasts = False

    def failed(self, reason: str, detail: str = "", *, quiet: bool = False) -> float:
        """Note a failure; return the seconds to wait, longer each time, up to half a minute.

        Logged where an outage begins, and again only where another `reason` comes up; `detail` may change.
        A `quiet` one is not worth a word yet.
        """
        self.lasts = self.lasts or not quiet
        if not quiet and reason not in self._reasons and len(self._reasons) < _MOST_REASONS:
            self._reasons.add(reason)
            words = f"{reason}: {detail}" if detail else reason
            log.warning("%s: %s; what it told last stands", self._subject, words[:_MOST_LETTERS])
        wait = self._next_seconds
        self._next_seconds = min(wait * 2, _LONGEST_SECONDS)
        # Routers that lost it together must not come back together.
        return wait * random.uniform(0.5, 1)

    def ended(self) -> None:
        """Note that it answers; logged where it did not before."""
        if self._reasons:
            log.info("%s: answers again", self._subject)
        self.lasts = False
        self._reasons.clear()
        self._next_seconds = _FIRST_SECONDS
