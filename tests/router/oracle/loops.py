"""The event loops that a router may run on: asyncio's own, and the one of `kvring router`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

_Made = TypeVar("_Made")


@contextmanager
def running(
    loop: str, make: Callable[[], AbstractAsyncContextManager[_Made]]
) -> Iterator[tuple[asyncio.Runner, _Made]]:
    """Give what `make` makes, and what runs coroutines on the same loop."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        context = make()
        made = runner.run(context.__aenter__())
        try:
            yield runner, made
        finally:
            runner.run(context.__aexit__(None, None, None))
