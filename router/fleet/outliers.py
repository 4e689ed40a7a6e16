"""Outliers: which replica became far slower than expected while its fleet did not; without clock and sockets.

Calibration explains lasting differences: a slower machine is priced as one, and what is expected of it grows
with that. What is left for this is a sudden change, too large and too quick to be learned: throttled clocks,
a neighbour that takes the memory bus, a disk that swaps. So seconds are compared with what was expected of
this very replica, and that ratio with the fleet's median: a wrong guess or an overload is wrong for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from statistics import median

from router.config import OutlierOptions

# A judgement rests on so many first bytes, the newest weighing most.
_LEAST_RECENT = 5
_GAIN = 0.3
# Before so many, a replica's speed is not known well enough to be surprised by it.
_LEAST_SEEN = 20
_LEAST_EXPECTED_SECONDS = 0.005


@dataclass(slots=True)
class _Pace:
    """One replica: the logarithm of observed over expected, and the seconds between them, averaged."""

    take_out: Callable[[float], None]
    model: str = ""
    seen: int = 0
    recent: int = 0
    level: float = 0.0
    excess_seconds: float = 0.0
    out: bool = False
    on_trial: bool = False

    def take(self, seconds: float, expected: float) -> None:
        """Average another first byte in."""
        self.seen += 1
        self.recent += 1
        gain = max(_GAIN, 1.0 / self.recent)
        ratio = max(seconds, _LEAST_EXPECTED_SECONDS) / max(expected, _LEAST_EXPECTED_SECONDS)
        self.level += gain * (log(ratio) - self.level)
        self.excess_seconds += gain * (seconds - expected - self.excess_seconds)

    def forget(self) -> None:
        """Judge by what comes from now on."""
        self.recent = 0
        self.level = self.excess_seconds = 0.0


class Outliers:
    """Compares the replicas of each model, known by numbers (their slots).

    Never the last is taken out, and only a share of them at once: where many are slow, the cause is another.
    """

    def __init__(self, options: Callable[[], OutlierOptions]) -> None:
        self._options = options
        self._paces: dict[int, _Pace] = {}

    def join(self, number: int, take_out: Callable[[float], None]) -> None:
        """Take in a replica; `take_out` is called with the time when it turns out to be one."""
        self._paces[number] = _Pace(take_out)

    def leave(self, number: int) -> None:
        """Forget a replica."""
        self._paces.pop(number, None)

    def serves(self, number: int, model: str) -> None:
        """Note which model it serves: only replicas of one model are compared."""
        if number in self._paces and self._paces[number].model != model:
            self._paces[number] = _Pace(self._paces[number].take_out, model)

    def restarted(self, number: int) -> None:
        """Forget what was seen of a replica: it is another process."""
        if number in self._paces:
            self._paces[number] = _Pace(self._paces[number].take_out, self._paces[number].model)

    def returned(self, number: int) -> None:
        """Note that it is back; was it out for slowness, its next first byte decides."""
        pace = self._paces.get(number)
        if pace is not None and pace.out:
            pace.out, pace.on_trial = False, True
            pace.forget()

    def observed(self, number: int, seconds: float, expected_seconds: float, now: float) -> None:
        """Take in how long a first byte took, from sending on, beside what was expected."""
        pace, options = self._paces.get(number), self._options()
        if pace is None or pace.out:
            return
        pace.take(seconds, expected_seconds)
        slow = (
            pace.seen >= _LEAST_SEEN
            and pace.excess_seconds > options.least_seconds
            and pace.level > log(options.ratio)
        )
        if not slow:
            pace.on_trial = False
        elif (pace.on_trial or pace.recent >= _LEAST_RECENT) and self._stands_out(pace, options):
            pace.out = True
            pace.take_out(now)

    def _stands_out(self, pace: _Pace, options: OutlierOptions) -> bool:
        members = [one for one in self._paces.values() if one.model == pace.model]
        others = [
            one.level for one in members if one is not pace and not one.out and one.recent >= _LEAST_RECENT
        ]
        out = sum(one.out for one in members)
        room = options.share > 0 and out + 1 <= max(1, int(options.share * len(members)))
        return bool(others) and room and pace.level - median(others) > log(options.ratio)
