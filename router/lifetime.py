"""Lifetime: runs a server until a signal ends it, and takes up changed options meanwhile."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import uvloop

from router.config import RouterConfig
from router.gateway.core import Core
from router.observe.log_format import formatter
from router.reload import Reloader
from router.settings import start_log

log = logging.getLogger("kvring")


class Server(Protocol):
    """What is run. `core` tells the options of now; the addresses are known once it has started."""

    core: Core
    address: str
    control_address: str

    async def start(self) -> None:
        """Listen."""

    def reload(self, config: RouterConfig) -> None:
        """Serve by other options from now on; SettingsError, PolicyError, OSError or ValueError if unfit."""

    async def drain(self) -> None:
        """Turn unready, and let what runs end."""

    async def stop(self) -> None:
        """Close everything."""


def run(
    build: Callable[[RouterConfig], Server], load: Callable[[], RouterConfig], file: Path | None = None
) -> None:
    """Run what `build` makes of the options that `load` returns until SIGTERM or SIGINT, then drain.

    A second signal ends it at once. SIGHUP, or a change of `file`, loads the options anew.
    """
    config = load()
    start_log(config.observe.log_level, formatter(config.observe.log_format))
    uvloop.run(_serve(build, config, load, file))


async def _serve(
    build: Callable[[RouterConfig], Server],
    config: RouterConfig,
    load: Callable[[], RouterConfig],
    file: Path | None,
) -> None:
    loop = asyncio.get_running_loop()
    asked, insisted, changed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (insisted if asked.is_set() else asked).set()

    # First of all: whoever signals one that starts must not kill it.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, changed.set)
    server = build(config)
    async with AsyncExitStack() as last:
        last.push_async_callback(server.stop)
        await server.start()
        log.info(
            "listening on %s, control on %s, policy %s",
            server.address,
            server.control_address,
            config.policy.name,
        )
        core = server.core
        reloader = Reloader(load, server.reload, file, lambda: core.serving.config, core.metrics, changed)
        reloading = asyncio.create_task(reloader.run())
        await asked.wait()
        log.info("draining")
        reloading.cancel()
        await _drain(server, insisted)


async def _drain(server: Server, insisted: asyncio.Event) -> None:
    """Drain until that is done, fails, or somebody insists."""
    draining = asyncio.create_task(server.drain())
    insisting = asyncio.create_task(insisted.wait())
    await asyncio.wait((draining, insisting), return_when=asyncio.FIRST_COMPLETED)
    draining.cancel()
    insisting.cancel()
    fault, _ = await asyncio.gather(draining, insisting, return_exceptions=True)
    if isinstance(fault, Exception):
        log.error("draining failed; what still runs is cut", exc_info=fault)
