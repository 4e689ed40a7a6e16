"""Runs asynchronous work that Ctrl-C, SIGTERM or a closed terminal ends in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

_Result = TypeVar("_Result")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal ended the work, after it had cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = signal.Signals(number)

    @property
    def exit_code(self) -> int:
        """The exit code that shells expect after such a signal."""
        return 128 + self.signal


def run_interruptible(work: Coroutine[object, object, _Result]) -> _Result:
    """Run `work` to its end. The first signal cancels it; its clean-up, which is bounded, ignores others."""
    return asyncio.run(_guard(work))


async def _guard(work: Coroutine[object, object, _Result]) -> _Result:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def interrupt(number: int) -> None:
        if not received:
            task.cancel()
        received.append(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt, number)
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            raise Interrupted(received[0]) from None
        raise
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
