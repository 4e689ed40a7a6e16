"""Signals as something to wait for beside sockets, in a process without an event loop."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Signals:
    """While it is entered, signals are read from `end`. For the main thread."""

    def __init__(self) -> None:
        self.end, self._writes = socket.socketpair()
        self.end.setblocking(False)
        self._writes.setblocking(False)

    def __enter__(self) -> Signals:
        self._wakeup_before = signal.set_wakeup_fd(self._writes.fileno())
        # The handlers do nothing: Python writes the numbers of signals that have one.
        self._before = {number: signal.signal(number, lambda *_: None) for number in HANDLED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._close()

    def take(self) -> list[signal.Signals]:
        """Return the signals that have come, in order."""
        return [signal.Signals(number) for number in self.end.recv(4096)]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let none come for a while. A process forked meanwhile is born so, until `renounce` and `admit`."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def renounce(self) -> None:
        """In a forked process: leave signals, those since the fork as well, to who handles them next."""
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)
        self._close()

    def _close(self) -> None:
        self.end.close()
        self._writes.close()


def admit() -> None:
    """Let signals come that were held when this process was forked; its handlers have to be in place."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
