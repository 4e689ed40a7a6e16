"""Supervisor: forks workers, hands signals on to them, and starts again those that die unasked.

It serves nothing and runs no event loop and no thread, so that it can fork at any time. Workers share the
memory of what has been imported before.
"""

from __future__ import annotations

import gc
import logging
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from time import monotonic
from typing import NoReturn

from router.policies import PolicyError
from router.settings import SettingsError
from router.workers.backoff import Backoff
from router.workers.child import Child
from router.workers.hub import Hub
from router.workers.link import Link
from router.workers.message import Kind, Message, framed
from router.workers.place import WorkerPlace
from router.workers.signals import Signals

log = logging.getLogger("kvring.workers")

# Drained, a worker closes what it has; one that takes longer does not end by itself.
_GRACE_SECONDS = 5.0
# Told to end at once, a worker tells its clients so, which takes a second.
_KILL_SECONDS = 10.0
_UNFIT_CODE, _FAILED_CODE = 2, 1

# Serves in a worker's process until it is told to end; the flag says whether it is one started again.
Serve = Callable[[WorkerPlace, bool], None]


class Supervisor:
    """Runs `count` workers. `run` is called once, from the main thread of a process with no other."""

    def __init__(self, count: int, serve: Serve, longest_drain_seconds: Callable[[], float]) -> None:
        """`serve` raises SettingsError or PolicyError for unfit options, OSError or ValueError else.

        `longest_drain_seconds` tells, when they are to drain, how long they may take by their own options.
        """
        self._count = count
        self._serve = serve
        self._longest_drain_seconds = longest_drain_seconds
        self._selector = selectors.DefaultSelector()
        self._signals = Signals()
        self._children: dict[int, Child] = {}
        self._backoffs = {number: Backoff() for number in range(1, count + 1)}
        self._hub = Hub(self._send, monotonic)
        # Whether all of them have served at once.
        self._whole = False
        self._ending = False
        # When those that are left are told to end at once, and when they are killed.
        self._insist_at: float | None = None
        self._kill_at: float | None = None
        self._fault: Exception | None = None

    def run(self) -> None:
        """Return when all workers have ended as they were told; raises what keeps them from serving."""
        # What is there lives as long as the process: collecting it would copy its memory in each worker.
        gc.collect()
        gc.freeze()
        try:
            with self._signals:
                self._selector.register(self._signals.end, selectors.EVENT_READ)
                for number in self._backoffs:
                    self._start(number, False)
                while self._children or not self._ending:
                    self._step()
        finally:
            # Workers that are left, whatever happened here, end when they find the line dead.
            for child in self._children.values():
                child.end.close()
            self._selector.close()
        if self._fault is not None:
            raise self._fault

    def _step(self) -> None:
        """Wait for what comes next, and see to it."""
        for key, _ in self._selector.select(self._wait_seconds()):
            if key.data is None:
                for one in self._signals.take():
                    self._signalled(one)
            else:
                self._hear(key.data)
        for child in list(self._children.values()):
            code = child.ended()
            if code is not None:
                self._bury(child, code)
        self._hub.expire()
        now = monotonic()
        if self._insist_at is not None and self._insist_at <= now:
            log.error("draining takes too long")
            self._end(insist=True)
        if self._kill_at is not None and self._kill_at <= now:
            self._kill()
        for number, backoff in self._backoffs.items():
            if backoff.due(now):
                self._start(number, True)
        for child in self._children.values():
            self._watch(child)

    def _wait_seconds(self) -> float | None:
        """Return for how long nothing is to be done unless something comes."""
        times = [self._hub.due, self._insist_at, self._kill_at]
        times += [backoff.at for backoff in self._backoffs.values()]
        due = min((time for time in times if time is not None), default=None)
        return None if due is None else max(0.0, due - monotonic())

    def _signalled(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            self._order(Kind.RELOAD)
        elif number in (signal.SIGTERM, signal.SIGINT):
            self._end(insist=self._ending)

    def _end(self, insist: bool) -> None:
        """Have all workers end, at once or in order; none is started again."""
        if self._fault is None:
            log.info("ending" if insist else "draining")
        self._ending = True
        for backoff in self._backoffs.values():
            backoff.cancel()
        self._order(Kind.INSIST if insist else Kind.DRAIN)
        if not insist:
            self._insist_at = monotonic() + self._longest_drain_seconds() + _GRACE_SECONDS
            return
        self._insist_at = None
        if self._kill_at is None:
            self._kill_at = monotonic() + _KILL_SECONDS

    def _kill(self) -> None:
        self._kill_at = None
        for child in self._children.values():
            log.error("%s does not end, and is killed", child)
            child.kill()

    def _order(self, kind: Kind) -> None:
        for child in self._children.values():
            child.send(Message(kind))

    def _send(self, worker: int, message: Message) -> None:
        child = self._children.get(worker)
        if child is not None:
            child.send(message)

    def _hear(self, child: Child) -> None:
        """Take what a worker sent."""
        child.flush()
        for message in child.receive():
            if message.kind is Kind.STARTED:
                self._started(child, message.body.decode())
            elif message.kind in (Kind.UNFIT, Kind.FAILED):
                self._cannot(child, message)
            else:
                self._hub.take(child.number, message)

    def _started(self, child: Child, introduction: str) -> None:
        child.started_at = monotonic()
        self._hub.started(child.number)
        serving = [each for each in self._children.values() if each.started_at is not None]
        if not self._whole and len(serving) == self._count:
            self._whole = True
            log.info("%s, %d workers", introduction, self._count)

    def _cannot(self, child: Child, message: Message) -> None:
        """A worker cannot serve: at the start none can, and the command fails; later it is tried again."""
        text = message.body.decode()
        if self._whole:
            log.error("%s cannot serve: %s", child, text.replace("\n", "; "))
        elif self._fault is None:
            # The others would say the same.
            self._fault = SettingsError(text) if message.kind is Kind.UNFIT else OSError(text)
            self._end(insist=True)

    def _bury(self, child: Child, code: int) -> None:
        """Take leave of a process that has ended."""
        # Its last counts may still be in the socket.
        self._hear(child)
        self._forget(child)
        child.end.close()
        del self._children[child.number]
        self._hub.gone(child.number)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if not self._ending:
            pause = self._backoffs[child.number].begin(child.started_at, monotonic())
            log.error("%s %s; it is started again in %g s", child, how, pause)
        elif code != 0 and self._fault is None:
            self._fault = OSError(f"{child} {how}")

    def _start(self, number: int, again: bool) -> None:
        """Fork a worker."""
        if again:
            self._hub.restarted()
        ours, its = socket.socketpair()
        # What was not written yet would be written by both.
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal for the worker that still finds the handlers of here would be taken for one to here.
        with self._signals.held():
            pid = os.fork()
            if pid == 0:
                self._become(WorkerPlace(number, self._count, Link(its.dup())), ours, its, again)
        its.close()
        child = self._children[number] = Child(number, pid, ours)
        self._watch(child)

    def _become(self, place: WorkerPlace, ours: socket.socket, its: socket.socket, again: bool) -> NoReturn:
        """Be a worker, and end the process after that."""
        code = _FAILED_CODE
        try:
            self._signals.renounce()
            self._selector.close()
            # Others would not notice that the supervisor is gone while somebody holds its end of their lines.
            for end in (ours, *(child.end for child in self._children.values())):
                end.close()
            self._serve(place, again)
            code = 0
        except (SettingsError, PolicyError) as error:
            code = _UNFIT_CODE
            _tell(its, Kind.UNFIT, error)
        except (OSError, ValueError) as error:
            _tell(its, Kind.FAILED, error)
        except BaseException:
            log.exception("worker %d failed", place.number)
        finally:
            logging.shutdown()
            # Not by an exception: what the supervisor does on its way out is not a worker's to do.
            os._exit(code)

    def _watch(self, child: Child) -> None:
        """Wake up when a worker sends, or reads what it was sent."""
        if child.silent:
            self._forget(child)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.unsent else 0)
        known = self._selector.get_map().get(child.end)
        if known is None:
            self._selector.register(child.end, events, child)
        elif known.events != events:
            self._selector.modify(child.end, events, child)

    def _forget(self, child: Child) -> None:
        if child.end in self._selector.get_map():
            self._selector.unregister(child.end)


def _tell(end: socket.socket, kind: Kind, error: Exception) -> None:
    end.setblocking(True)
    end.sendall(framed(Message(kind, body=str(error).encode())))
