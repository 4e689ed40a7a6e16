"""Outliers: which replica became far slower than expected while its fleet did not; without clock and sockets.

Calibration explains lasting differences: a slower machine is priced as one, and what is expected of it grows
with that. What is left for this is a sudden change, too large and too quick to be learned: throttled clocks,
a neighbour that takes the memory bus, a disk that swaps. So seconds are compared with what was expected of
this very replica, and that ratio with the fleet's median: a wrong guess or an overload is wrong for all.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from statistics import median

from router.config import OutlierOptions

# A judgement rests on so many first bytes, the newest weighing most.
_LEAST_RECENT = 5
_GAIN = 0.3
# Before so many, a replica's speed is not known well enough to be surprised by it.
_LEAST_SEEN = 20
_LEAST_EXPECTED_SECONDS = 0.005
# No ratio is configured so low that this were slow.
_NEVER_SLOW = log(1.5)


class Pace:
    """One replica: the logarithm of observed over expected, and the seconds between them, averaged."""

    __slots__ = (
        "_judge",
        "excess_seconds",
        "level",
        "model",
        "on_trial",
        "out",
        "recent",
        "seen",
        "take_out",
    )

    def __init__(self, take_out: Callable[[float], None], judge: Callable[[Pace, float], None]) -> None:
        """`judge` is called with this and the time where it may be slow; it may call `take_out`."""
        self.take_out = take_out
        self._judge = judge
        self.begin_anew("")

    def begin_anew(self, model: str) -> None:
        """Forget what was seen: it serves another model, or is another process."""
        self.model = model
        self.seen = 0
        self.out = self.on_trial = False
        self.forget()

    def forget(self) -> None:
        """Judge by what comes from now on."""
        self.recent = 0
        self.level = self.excess_seconds = 0.0

    def observed(self, seconds: float, expected_seconds: float, now: float) -> None:
        """Take in how long a first byte took, from sending on, beside what was expected."""
        if self.out:
            return
        self.seen += 1
        self.recent += 1
        gain = _GAIN if self.recent > 3 else 1.0 / self.recent
        least = _LEAST_EXPECTED_SECONDS
        ratio = (seconds if seconds > least else least) / (
            expected_seconds if expected_seconds > least else least
        )
        self.level += gain * (log(ratio) - self.level)
        self.excess_seconds += gain * (seconds - expected_seconds - self.excess_seconds)
        if self.level > _NEVER_SLOW:
            self._judge(self, now)
        else:
            self.on_trial = False


class Outliers:
    """Compares the replicas of each model, known by numbers (their slots).

    Never the last is taken out, and only a share of them at once: where many are slow, the cause is another.
    """

    def __init__(self, options: Callable[[], OutlierOptions]) -> None:
        self._options = options
        self._paces: dict[int, Pace] = {}

    def join(self, number: int, take_out: Callable[[float], None]) -> Pace:
        """Take in a replica; `take_out` is called with the time when it turns out to be one.

        Its pace is told of first bytes, until it leaves.
        """
        pace = self._paces[number] = Pace(take_out, self._judge)
        return pace

    def leave(self, number: int) -> None:
        """Forget a replica."""
        pace = self._paces.pop(number, None)
        if pace is not None:
            # What still runs there is not judged any more.
            pace.out = True

    def serves(self, number: int, model: str) -> None:
        """Note which model it serves: only replicas of one model are compared."""
        pace = self._paces.get(number)
        if pace is not None and pace.model != model:
            pace.begin_anew(model)

    def restarted(self, number: int) -> None:
        """Forget what was seen of a replica: it is another process."""
        pace = self._paces.get(number)
        if pace is not None:
            pace.begin_anew(pace.model)

    def returned(self, number: int) -> None:
        """Note that it is back; was it out for slowness, its next first byte decides."""
        pace = self._paces.get(number)
        if pace is not None and pace.out:
            pace.out, pace.on_trial = False, True
            pace.forget()

    def _judge(self, pace: Pace, now: float) -> None:
        options = self._options()
        limit = log(options.ratio)
        if pace.excess_seconds <= options.least_seconds or pace.level <= limit:
            pace.on_trial = False
        elif (
            pace.seen >= _LEAST_SEEN
            and (pace.on_trial or pace.recent >= _LEAST_RECENT)
            and self._stands_out(pace, limit, options.share)
        ):
            pace.out = True
            pace.take_out(now)

    def _stands_out(self, pace: Pace, limit: float, share: float) -> bool:
        members = [one for one in self._paces.values() if one.model == pace.model]
        others = [
            one.level for one in members if one is not pace and not one.out and one.recent >= _LEAST_RECENT
        ]
        out = sum(one.out for one in members)
        room = share > 0 and out + 1 <= max(1, int(share * len(members)))
        return bool(others) and room and pace.level - median(others) > limit
