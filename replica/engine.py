"""The engine: schedules, runs and completes step after step in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, TypeVar

from replica.batch import Runner
from replica.block_pool import BlockPool
from replica.load import WorkLoad
from replica.scheduler import Scheduler
from replica.sequence import Finish, Sequence
from replica.step import Counts, Output, Step

_log = logging.getLogger(__name__)
_Seen = TypeVar("_Seen")

# A runner that fails this often in a row will not recover by itself.
FAILURES_UNTIL_BROKEN = 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine as of its last schedule or step; anybody may read it at any time.

    `names` are those that a digest publishes, as of `names_at` (None: as of now); `names_version` tells
    them apart. `epoch` grows with every reset.
    """

    running: int
    waiting: int
    block_count: int
    free_blocks: int
    cached_names: int
    epoch: int
    steps: int
    counts: Counts
    names: tuple[bytes, ...]
    names_version: int
    names_at: float | None
    broken: bool


@dataclass(frozen=True, slots=True)
class _Reset:
    done: Future[bool]


@dataclass(frozen=True, slots=True)
class _Look:
    look: Callable[[BlockPool], Any]
    done: Future[Any]


@dataclass(frozen=True, slots=True)
class _Abort:
    id: int


class _Stop:
    """Ends the thread."""


_Command = Sequence | _Abort | _Reset | _Look | _Stop


class Engine:
    """Owns scheduler, pool and runner, and alone touches them. Everything else goes through its inbox.

    `observe_step` gets each step with its seconds, and `flush_events` is called once what a step or a reset
    did to the pool is done; both in the engine's thread.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        load: WorkLoad,
        observe_step: Callable[[Step, float], None],
        publish_seconds: float,
        flush_events: Callable[[], None] | None = None,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._load = load
        self._observe_step = observe_step
        self._publish_seconds = publish_seconds
        self._flush_events = flush_events
        self._inbox: SimpleQueue[_Command] = SimpleQueue()
        self._thread = Thread(target=self._loop, name="engine", daemon=True)
        self._deliver: Callable[[list[Output]], None] = _ignore
        self._stopping = False
        self._ended = False
        self._failures = 0
        self._epoch = 0
        self._steps = 0
        self._names: tuple[bytes, ...] = ()
        self._names_version = scheduler.pool.version
        self._publish_due = 0.0
        self._names_at = monotonic()
        self._publish()

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        return self._snapshot

    def start(self, deliver: Callable[[list[Output]], None]) -> None:
        """Start stepping. `deliver` gets the outputs of each step, once a step, in the engine's thread."""
        self._deliver = deliver
        self._thread.start()

    def add(self, sequence: Sequence) -> None:
        """Hand over a sequence; outputs follow until one of them says how it finished."""
        # A prewarm goes after all others, so that it is no work that they wait for.
        if not sequence.prewarm:
            self._scheduler.foresee(sequence)
        self._put(sequence)

    def abort(self, id: int) -> None:
        """End a sequence before its time, after the running step at the latest. No output follows for it."""
        self._inbox.put(_Abort(id))

    def reset(self) -> Future[bool]:
        """Clear the prefix cache once the running step is over; the result says whether it was idle."""
        done: Future[bool] = Future()
        self._put(_Reset(done))
        return done

    def held(self, names: Ordered[bytes]) -> int:
        """Return how many of the names, from the first on, are in the pool; from any thread, an estimate."""
        return len(self._scheduler.pool.match(names))

    def look(self, look: Callable[[BlockPool], _Seen]) -> Future[_Seen]:
        """Call `look` with the pool between two steps; cancelled if the engine has ended."""
        done: Future[_Seen] = Future()
        self._put(_Look(look, done))
        return done

    def stop(self, timeout_seconds: float) -> bool:
        """Stop after the running step and close the runner; False if that takes too long."""
        self._inbox.put(_Stop())
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _put(self, command: _Command) -> None:
        self._inbox.put(command)
        if self._ended:
            self._refuse_rest()

    def _loop(self) -> None:
        try:
            while not self._stopping:
                self._obey()
                if not self._stopping:
                    self._step()
        except Exception:
            # A fault of ours: what the blocks hold can no longer be trusted, so nothing more is served.
            _log.exception("the engine stops for good")
            self._failures = FAILURES_UNTIL_BROKEN
            self._publish()
        finally:
            self._end_all()
            self._ended = True
            self._refuse_rest()
            self._runner.close()

    def _obey(self) -> None:
        """Carry out the commands; with nothing to step, wait for one, or until names are due."""
        idle = not self._scheduler.ids()
        while True:
            try:
                command = self._inbox.get(timeout=self._wait_seconds()) if idle else self._inbox.get_nowait()
            except Empty:
                break
            idle = False
            if isinstance(command, Sequence):
                self._scheduler.add(command)
            elif isinstance(command, _Abort):
                self._scheduler.drop(command.id)
            elif isinstance(command, _Reset):
                self._clear(command.done)
            elif isinstance(command, _Look):
                self._show(command)
            else:
                self._stopping = True
        self._publish()

    def _wait_seconds(self) -> float | None:
        if self._scheduler.pool.version == self._names_version:
            return None
        return max(0.0, self._publish_due - monotonic())

    def _step(self) -> None:
        step = self._scheduler.schedule()
        if ended := self._scheduler.take_ended():
            self._deliver(ended)
        if step is None:
            if self._scheduler.ids():
                raise RuntimeError("sequences wait though nothing runs")
            return
        self._publish()
        self._load.begin_step(step.prefill, step.decodes)
        try:
            sampled = self._runner.run(step.batch)
        except Exception:
            self._load.end_step(learn=False)
            self._failures += 1
            _log.exception("the runner failed on a batch of %d", len(step.sequences))
            self._fail(step)
            return
        self._failures = 0
        seconds = self._load.end_step()
        step.charge(self._load.cost, seconds)
        outputs = self._scheduler.complete(step, sampled)
        self._steps += 1
        self._tell_events()
        self._publish()
        self._observe_step(step, seconds)
        if outputs:
            self._deliver(outputs)

    def _tell_events(self) -> None:
        if self._flush_events is not None:
            self._flush_events()

    def _fail(self, step: Step) -> None:
        for sequence in step.sequences:
            self._scheduler.drop(sequence.id)
        self._tell_events()
        self._publish()
        self._deliver([Output(sequence.id, None, Finish.ERROR) for sequence in step.sequences])

    def _end_all(self) -> None:
        ids = self._scheduler.ids()
        for id in ids:
            self._load.leave(id)
        self._deliver([Output(id, None, Finish.ERROR) for id in ids])

    def _refuse_rest(self) -> None:
        """Answer what came in too late."""
        while True:
            try:
                command = self._inbox.get_nowait()
            except Empty:
                return
            if isinstance(command, Sequence):
                self._load.leave(command.id)
                self._deliver([Output(command.id, None, Finish.ERROR)])
            elif isinstance(command, _Reset):
                if command.done.set_running_or_notify_cancel():
                    command.done.set_result(False)
            elif isinstance(command, _Look):
                command.done.cancel()

    def _show(self, command: _Look) -> None:
        if not command.done.set_running_or_notify_cancel():
            return
        try:
            command.done.set_result(command.look(self._scheduler.pool))
        except Exception as error:
            command.done.set_exception(error)

    def _clear(self, done: Future[bool]) -> None:
        # Whoever asked may be gone, and a cancelled future takes no result.
        if not done.set_running_or_notify_cancel():
            return
        cleared = self._scheduler.pool.reset()
        if cleared:
            self._tell_events()
            self._epoch += 1
            self._publish_due = 0.0
            self._publish()
        done.set_result(cleared)

    def _publish(self) -> None:
        pool = self._scheduler.pool
        now = monotonic()
        if self._names_version != pool.version and now >= self._publish_due:
            self._names, self._names_version = pool.boundary_names(), pool.version
            self._publish_due = now + self._publish_seconds
            self._names_at = now
        self._snapshot = Snapshot(
            running=self._scheduler.running_count,
            waiting=self._scheduler.waiting_count,
            block_count=pool.block_count,
            free_blocks=pool.free_count,
            cached_names=pool.name_count,
            epoch=self._epoch,
            steps=self._steps,
            counts=replace(self._scheduler.counts),
            names=self._names,
            names_version=self._names_version,
            names_at=None if self._names_version == pool.version else self._names_at,
            broken=self._failures >= FAILURES_UNTIL_BROKEN,
        )


def _ignore(outputs: list[Output]) -> None:
    """Before the start nobody listens, and nothing is sent."""
