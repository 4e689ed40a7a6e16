"""One simulated run: discrete events in virtual time, from the first arrival to the last first token."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.simulate.evidence import Uncached
from loadgen.simulate.replica import Job, Replica
from loadgen.simulate.routers import Routers
from loadgen.simulate.scenario import Scenario
from loadgen.simulate.workload import Request, Workload

# Replicas report in so many turns within one period, as they would not all at once.
_REPORT_TURNS = 8


class _Event(IntEnum):
    """What may happen besides arrivals; at one moment, in this order."""

    CHANGE = 0
    PREFILL_ENDS = 1
    DECODE_ENDS = 2
    LOAD_REPORT = 3
    DIGEST = 4


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What came of it: one entry a request, in order of arrival; NaN and -1 for those that were rejected.

    `prefill_seconds` is all time that replicas spent in prefills, until they left. `span_seconds` is the time
    between the first arrival and the last, `replica_seconds` how long replicas were there within it, summed.
    `uncached` is by cause, over the counted requests, empty unless asked for.
    """

    counted_from: int
    arrival_seconds: npt.NDArray[np.float64]
    ttft_seconds: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[np.int64]
    hit_tokens: npt.NDArray[np.int64]
    expected_tokens: npt.NDArray[np.int64]
    replica: npt.NDArray[np.int64]
    router: npt.NDArray[np.int64]
    replica_names: tuple[str, ...]
    prefill_seconds: float
    span_seconds: float
    replica_seconds: float
    uncached: dict[str, int]

    @property
    def utilisation(self) -> float:
        """The share of the time that replicas spent in prefills."""
        return self.prefill_seconds / self.replica_seconds if self.replica_seconds else 0.0


class Simulation:
    """The state of one run. Use once: `Simulation(workload, scenario).run()`."""

    def __init__(self, workload: Workload, scenario: Scenario) -> None:
        self._workload = workload
        self._scenario = scenario
        self._draw = random.Random(scenario.seed)
        self._events: list[tuple[float, int, int, Any]] = []
        self._sequence = 0
        self._replicas: list[Replica] = []
        slots = scenario.replicas + sum(max(0, change.count) for change in scenario.changes)
        self._routers = Routers(scenario, self._replicas, slots)
        count = len(workload.requests)
        self._assigned = np.array([self._draw.randrange(scenario.routers) for _ in range(count)])
        self._counted_from = int(count * scenario.warm_up_share)
        self._ttft = np.full(count, np.nan)
        self._hit = np.zeros(count, dtype=np.int64)
        self._expected = np.zeros(count, dtype=np.int64)
        self._where = np.full(count, -1, dtype=np.int64)
        self._busy_seconds = 0.0
        self._waiting_for = 0
        self._uncached = Uncached(self._replicas, workload.block_tokens) if scenario.misses else None

    def run(self, progress: Callable[[int], None] = lambda done: None) -> Run:
        """Simulate; `progress` is told now and then how many requests have arrived."""
        scale = self._scenario.time_scale
        requests = self._workload.requests
        self._grow(self._scenario.replicas, 0.0)
        self._begin_reports()
        for change in self._scenario.changes:
            self._schedule(change.at_seconds, _Event.CHANGE, change.count)
        for request in requests:
            now = request.arrival_seconds / scale
            self._advance(now)
            self._route(request, int(self._assigned[request.number]), now)
            if request.number % 256 == 0:
                progress(request.number)
        self._advance(float("inf"))
        arrivals = np.array([request.arrival_seconds for request in requests]) / scale
        first, last = (float(arrivals[0]), float(arrivals[-1])) if len(arrivals) else (0.0, 0.0)
        return Run(
            counted_from=self._counted_from,
            arrival_seconds=arrivals,
            ttft_seconds=self._ttft,
            prompt_tokens=np.array([request.prompt_tokens for request in requests], dtype=np.int64),
            hit_tokens=self._hit,
            expected_tokens=self._expected,
            replica=self._where,
            router=self._assigned,
            replica_names=tuple(replica.name for replica in self._replicas),
            prefill_seconds=self._busy_seconds,
            span_seconds=last - first,
            replica_seconds=sum(replica.seconds_within(first, last) for replica in self._replicas),
            uncached=self._uncached.by_cause() if self._uncached else {},
        )

    def _advance(self, until: float) -> None:
        """Let everything happen that does before `until`; without end, until nobody waits any more."""
        events = self._events
        forever = until == float("inf")
        while events and events[0][0] <= until and (self._waiting_for or not forever):
            now, kind, _, what = heappop(events)
            if kind == _Event.PREFILL_ENDS:
                self._prefill_ended(what[0], what[1], now)
            elif kind == _Event.DECODE_ENDS:
                self._decode_ended(what[0], what[1])
            elif kind == _Event.LOAD_REPORT:
                self._routers.report(self._replicas[what], now)
                self._schedule(now + self._scenario.load_staleness_seconds, kind, what)
            elif kind == _Event.DIGEST:
                self._renew_digest(what, now)
                self._schedule(now + self._scenario.digest_seconds, kind, what)
            elif what > 0:
                self._grow(what, now)
            else:
                self._shrink(-what, now)

    def _route(self, request: Request, router: int, now: float) -> None:
        present = [replica for replica in self._replicas if not replica.gone]
        if not present or not present[0].fits(request):
            return
        replica, choice = self._routers.decide(router, request, now)
        job = Job(request, router, choice.expected_tokens)
        if self._uncached and request.number >= self._counted_from:
            told_tokens = self._routers.told_tokens(request, replica, choice)
            job.evidence = self._uncached.decided(request, replica, told_tokens, now)
        self._waiting_for += 1
        replica.accept(job)
        if replica.serving is None:
            self._begin(replica, now)

    def _begin(self, replica: Replica, now: float) -> None:
        ends = replica.begin(now)
        self._busy_seconds += ends - now
        self._schedule(ends, _Event.PREFILL_ENDS, (replica, replica.serving))

    def _prefill_ended(self, replica: Replica, job: Job, now: float) -> None:
        if replica.gone:
            return
        request = job.request
        number = request.number
        self._waiting_for -= 1
        self._ttft[number] = now - request.arrival_seconds / self._scenario.time_scale
        self._hit[number] = job.hit_tokens
        self._expected[number] = job.expected_tokens
        self._where[number] = replica.slot
        if self._uncached:
            if job.evidence is not None:
                self._uncached.ended(job.evidence, job.hit_tokens)
            self._uncached.computed(request)
        replica.end()
        decoded = now + request.output_tokens * self._scenario.decode_seconds_per_token
        self._schedule(decoded, _Event.DECODE_ENDS, (replica, job))
        if replica.queue:
            self._begin(replica, now)

    def _decode_ended(self, replica: Replica, job: Job) -> None:
        replica.decodes -= 1
        self._routers.finished(job, replica)

    def _renew_digest(self, replica: Replica, now: float) -> None:
        if replica.gone:
            return
        digest = replica.digest()
        if digest is not None:
            self._routers.digests.put(replica.slot, digest, now)
        else:
            self._routers.digests.still_true(replica.slot, now)

    def _grow(self, count: int, now: float) -> None:
        scenario = self._scenario
        added = []
        for _ in range(count):
            slot = len(self._replicas)
            believed = scenario.believed_scale * (scenario.believed_scale_of_first if slot == 0 else 1.0)
            name = f"replica-{scenario.seed}-{slot}"
            replica = Replica(slot, name, self._workload.block_tokens, scenario, believed, now)
            self._replicas.append(replica)
            added.append(replica)
        self._meet()
        self._routers.report(added, now)
        if self._routers.sees == "reports":
            for replica in added:
                # Each at its own time within the period.
                first = now + self._draw.random() * scenario.digest_seconds
                self._schedule(first, _Event.DIGEST, replica)
                self._renew_digest(replica, now)

    def _shrink(self, count: int, now: float) -> None:
        present = [replica for replica in self._replicas if not replica.gone]
        leaving = present[max(1, len(present) - count) :]
        self._busy_seconds -= sum(replica.busy_seconds(now) for replica in leaving)
        orphans = [(replica, job) for replica in leaving for job in replica.leave(now)]
        self._meet()
        for replica in leaving:
            self._routers.digests.clear(replica.slot)
        for replica, job in orphans:
            # The router sends it on, to whom it now thinks best.
            self._routers.finished(job, replica)
            self._waiting_for -= 1
            self._route(job.request, job.router, now)

    def _meet(self) -> None:
        self._routers.meet([replica for replica in self._replicas if not replica.gone])

    def _begin_reports(self) -> None:
        period = self._scenario.load_staleness_seconds
        if period == 0 or self._routers.sees == "truth":
            return
        turns = min(_REPORT_TURNS, self._scenario.replicas)
        for turn in range(turns):
            self._schedule(period * turn / turns, _Event.LOAD_REPORT, slice(turn, None, turns))

    def _schedule(self, at: float, kind: int, what: object) -> None:
        self._sequence += 1
        heappush(self._events, (at, kind, self._sequence, what))


def simulate_run(
    workload: Workload, scenario: Scenario, progress: Callable[[int], None] = lambda done: None
) -> Run:
    """Simulate one run."""
    return Simulation(workload, scenario).run(progress)
