"""The replica's load: seconds of prefill that are queued or running, and what a prefill really costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from time import monotonic

from router.fleet.prefill_fit import PrefillFit
from router.wire.report import PrefillCost


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """What a prefill's seconds are linear in, as whole numbers, so that sums of them never drift.

    `ends` counts prompts that it completes, `uncached` the tokens to compute, and `context_twice` is twice
    the sum of u * (L - u / 2).
    """

    ends: int = 0
    uncached: int = 0
    context_twice: int = 0

    @classmethod
    def of(cls, length: int, done: int, end: bool = True) -> PrefillShape:
        """The shape of computing tokens `done` .. `length`-1, completing the prompt if `end`."""
        uncached = max(1, length - done)
        return cls(int(end), uncached, uncached * (2 * length - uncached))

    def __add__(self, other: PrefillShape) -> PrefillShape:
        return PrefillShape(
            self.ends + other.ends, self.uncached + other.uncached, self.context_twice + other.context_twice
        )

    def __sub__(self, other: PrefillShape) -> PrefillShape:
        return PrefillShape(
            self.ends - other.ends, self.uncached - other.uncached, self.context_twice - other.context_twice
        )

    def parts(self, cost: PrefillCost) -> tuple[float, float, float]:
        """Return the seconds due to prompts, to tokens, and to their context."""
        return (
            cost.base_seconds * self.ends,
            cost.per_token_seconds * self.uncached,
            cost.per_token_context_seconds * self.context_twice / 2,
        )

    def seconds(self, cost: PrefillCost) -> float:
        """Return S of this shape."""
        return sum(self.parts(cost))


NOTHING = PrefillShape()


class PrefillMeter:
    """Learns what prefill costs here, from the configured coefficients on, by what steps take.

    What decodes in the same step cost is set aside; the rest is fitted robustly, since equal replicas that
    learn unequal costs, each from what else its machine happened to do, would be loaded unequally.
    """

    def __init__(self, start: PrefillCost) -> None:
        self._fit = PrefillFit(start)
        self._decode_seconds = 0.0

    @property
    def cost(self) -> PrefillCost:
        """The coefficients, as known now."""
        return self._fit.cost

    def learn(self, shape: PrefillShape, decodes: int, seconds: float) -> None:
        """Take in a step that computed prefills of `shape` beside `decodes` decoding sequences."""
        if shape.uncached == 0:
            # What decodes cost is subtracted from mixed steps; half a step's error is taken over.
            self._decode_seconds += 0.5 * (seconds / max(1, decodes) - self._decode_seconds)
            return
        aside = decodes * self._decode_seconds
        if aside <= seconds / 2:
            features = (shape.ends, shape.uncached, shape.context_twice / 2)
            self._fit.observe(features, seconds - aside)


@dataclass(slots=True)
class _Prefill:
    """One prompt that is not computed yet: what is left of it, and the names it will bring."""

    left: PrefillShape
    names: Sequence[bytes]


class WorkLoad:
    """Keeps `work_seconds`: S of all prompts not yet computed, less what the running step has done.

    Thread-safe: the server enqueues and reports, also in the middle of a step, and the engine tells progress.
    """

    def __init__(self, meter: PrefillMeter, clock: Callable[[], float] = monotonic) -> None:
        self._meter = meter
        self._clock = clock
        self._lock = Lock()
        self._prefills: dict[int, _Prefill] = {}
        self._total = NOTHING
        # Names that prompts ahead will have brought by the time that a new one is served.
        self._coming: Counter[bytes] = Counter()
        self._step = NOTHING
        self._step_decodes = 0
        self._step_began = 0.0

    @property
    def cost(self) -> PrefillCost:
        """The coefficients of S, as known now."""
        return self._meter.cost

    def enqueue(self, id: int, length: int, names: Sequence[bytes], resident: int, block_tokens: int) -> None:
        """Count a new prompt of `length` tokens; the first `resident` of its `names` are in the pool."""
        with self._lock:
            hit, limit = resident, (length - 1) // block_tokens
            while hit < limit and hit < len(names) and names[hit] in self._coming:
                hit += 1
            self._coming.update(names)
            left = PrefillShape.of(length, hit * block_tokens)
            self._prefills[id] = _Prefill(left, names)
            self._total += left

    def left(self, id: int, length: int, done: int) -> None:
        """Tell that `done` of the `length` known tokens of a sequence need not be computed (any more)."""
        with self._lock:
            prefill = self._prefills.get(id)
            if prefill is None:
                # Preempted: it must be computed once more.
                prefill = self._prefills[id] = _Prefill(NOTHING, ())
            shape = PrefillShape.of(length, done)
            self._total += shape - prefill.left
            prefill.left = shape

    def leave(self, id: int) -> None:
        """Tell that a prompt is computed, or will never be."""
        with self._lock:
            prefill = self._prefills.pop(id, None)
            if prefill is None:
                return
            self._total -= prefill.left
            for name in prefill.names:
                if self._coming[name] == 1:
                    del self._coming[name]
                else:
                    self._coming[name] -= 1

    def begin_step(self, shape: PrefillShape, decodes: int) -> None:
        """Tell that a step starts which computes prefills of `shape`."""
        with self._lock:
            self._step, self._step_decodes = shape, decodes
            self._step_began = self._clock()

    def end_step(self, learn: bool = True) -> float:
        """Tell that the step is over; return its seconds. A failed one teaches nothing."""
        with self._lock:
            seconds = self._clock() - self._step_began
            if learn:
                self._meter.learn(self._step, self._step_decodes, seconds)
            self._step = NOTHING
            return seconds

    def seconds(self) -> float:
        """Return work_seconds as of now. O(1)."""
        with self._lock:
            work = self._total.seconds(self.cost)
            if self._step.uncached:
                elapsed = self._clock() - self._step_began
                work -= min(elapsed, self._step.seconds(self.cost))
            return max(0.0, work)
