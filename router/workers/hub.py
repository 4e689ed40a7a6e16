"""Hub: adds up what workers tell, and passes on what one of them asks of all. Sends by a function; no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from router.observe.merge import Family, exposition, families, merged, packed, snapshot
from router.workers.ended import Ended
from router.workers.message import About, Kind, Message

# One that is stopped or busy for longer is told of by what it told last.
_WAIT_SECONDS = 1.0

Send = Callable[[int, Message], None]


@dataclass(frozen=True, slots=True)
class _Asker:
    worker: int
    message: Message


@dataclass(slots=True, eq=False)
class _Round:
    """One question to several workers."""

    askers: list[_Asker]
    deadline: float
    missing: set[int] = field(default_factory=set)
    found: bytes = b""


class Hub:
    """Knows of each worker that serves what it last told. Workers are named by their numbers."""

    def __init__(self, send: Send, now: Callable[[], float]) -> None:
        """`send` takes a worker's number and what is for it; `now` is a monotonic clock in seconds."""
        self._send = send
        self._now = now
        self._told: dict[int, bytes] = {}
        self._ended = Ended()
        self._rounds: dict[int, _Round] = {}
        self._last = 0
        # Who asked for sums while they were being gathered gets those of the next round: what it has seen
        # happen is in them for sure.
        self._gathering: int | None = None
        self._next: list[_Asker] = []
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="kvring", registry=self._registry)
        self._serving = Gauge("kvring_workers", "Processes that serve the port.", registry=self._registry)
        self._restarts = Counter(
            "kvring_worker_restarts",
            "Workers started again since they died unasked.",
            registry=self._registry,
        )

    def started(self, worker: int) -> None:
        """Count a worker in."""
        self._told.setdefault(worker, b"")
        self._serving.set(len(self._told))

    def restarted(self) -> None:
        """Count a restart."""
        self._restarts.inc()

    def gone(self, worker: int) -> None:
        """Keep what a worker counted that is no more, and wait for it no longer."""
        told = self._told.pop(worker, b"")
        self._serving.set(len(self._told))
        if told:
            self._ended.add(families(told))
        self._next = [asker for asker in self._next if asker.worker != worker]
        for number in list(self._rounds):
            self._answered(number, worker, b"")

    def take(self, worker: int, message: Message) -> None:
        """Take what a worker sent."""
        if message.kind is Kind.SNAPSHOT:
            if worker in self._told:
                self._told[worker] = message.body
        elif message.kind is Kind.ANSWER:
            if self._gathering == message.number and message.body and worker in self._told:
                self._told[worker] = message.body
            self._answered(message.number, worker, message.body)
        elif message.kind is Kind.ASK:
            self._asked(_Asker(worker, message))

    @property
    def due(self) -> float | None:
        """When `expire` has to be called, None for never."""
        return min((one.deadline for one in self._rounds.values()), default=None)

    def expire(self) -> None:
        """Answer by what is there where somebody has been waited for long enough."""
        now = self._now()
        for number, one in list(self._rounds.items()):
            if one.deadline <= now:
                self._close(number)

    def _asked(self, asker: _Asker) -> None:
        about = asker.message.about
        if about is About.EXPLANATION:
            self._ask([asker], about, asker.message.body, set(self._told) - {asker.worker})
        else:
            self._next.append(asker)
            self._gather()

    def _gather(self) -> None:
        """Ask all for their metrics, unless that is being done."""
        if self._next and self._gathering is None:
            askers, self._next = self._next, []
            self._gathering = self._last + 1
            self._ask(askers, About.SNAPSHOT, b"", set(self._told))

    def _ask(self, askers: list[_Asker], about: About, body: bytes, workers: set[int]) -> None:
        self._last = number = self._last + 1
        one = self._rounds[number] = _Round(askers, self._now() + _WAIT_SECONDS, workers)
        if not workers:
            self._close(number)
            return
        for worker in list(one.missing):
            self._send(worker, Message(Kind.ASK, number, about, body))

    def _answered(self, number: int, worker: int, body: bytes) -> None:
        one = self._rounds.get(number)
        if one is None:
            return
        one.missing.discard(worker)
        one.found = one.found or body
        known = bool(body) and number != self._gathering
        if known or not one.missing:
            self._close(number)

    def _close(self, number: int) -> None:
        """Answer all who asked."""
        one = self._rounds.pop(number)
        if number != self._gathering:
            for asker in one.askers:
                self._tell(asker, one.found)
            return
        self._gathering = None
        sums = self._sums()
        made: dict[About | None, bytes] = {}
        for asker in one.askers:
            about = asker.message.about
            if about not in made:
                made[about] = exposition(sums) if about is About.METRICS else packed(sums)
            self._tell(asker, made[about])
        self._gather()

    def _tell(self, asker: _Asker, body: bytes) -> None:
        self._send(asker.worker, Message(Kind.ANSWER, asker.message.number, body=body))

    def _sums(self) -> list[Family]:
        living = [families(told) for told in self._told.values() if told]
        self._ended.forget_departed(living, self._now())
        return merged([*living, families(snapshot(self._registry))], self._ended.families)
