"""A worker as its supervisor sees it: a process, the supervisor's end of the line, and how it fares."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from router.workers.message import BrokenError, Inbox, Message, framed

_READ_BYTES = 256 * 1024
# What a worker may leave unread; questions to one that does not read are dropped beyond it.
_MOST_UNSENT = 1024 * 1024


class Child:
    """One process of one worker; a worker that is started again is another child."""

    def __init__(self, number: int, pid: int, end: socket.socket) -> None:
        """`end` is the child's own from now on, and gets non-blocking."""
        self.number = number
        self.pid = pid
        self.end = end
        # When it began to serve, by the monotonic clock.
        self.started_at: float | None = None
        # The worker has hung up; its process may still be ending.
        self.silent = False
        self._inbox = Inbox()
        self._unsent = bytearray()
        end.setblocking(False)

    def __str__(self) -> str:
        return f"worker {self.number} (process {self.pid})"

    @property
    def unsent(self) -> bool:
        """Whether something waits until the worker reads."""
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Send as much as goes now, and the rest by `flush`."""
        if not self.silent and len(self._unsent) < _MOST_UNSENT:
            self._unsent += framed(message)
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
        try:
            while self._unsent:
                del self._unsent[: self.end.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()

    def receive(self) -> list[Message]:
        """Return the messages that are there; one that makes no sense is killed."""
        messages: list[Message] = []
        while not self.silent:
            try:
                piece = self.end.recv(_READ_BYTES)
                messages += self._inbox.feed(piece)
            except BlockingIOError:
                break
            except (OSError, BrokenError):
                self.silent = True
                self.kill()
                break
            self.silent = not piece
        return messages

    def ended(self) -> int | None:
        """Reap the process if it has ended; return its exit code, negative for a signal, or None."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def kill(self) -> None:
        """End the process whatever it does."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
