"""Lifetime: runs a server until a signal ends it, and takes up changed options meanwhile."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import Protocol

import uvloop

from router.config import RouterConfig
from router.gateway.core import Core
from router.http.files import raise_file_limit
from router.observe.log_format import formatter
from router.observe.log_lines import write_log_aside
from router.reload import Reloader
from router.settings import SettingsError, start_log
from router.workers.answers import CoreAnswers
from router.workers.message import Kind
from router.workers.place import WorkerPlace
from router.workers.ports import Ports
from router.workers.signals import admit
from router.workers.supervisor import Supervisor

log = logging.getLogger("kvring")

# New objects before the youngest are looked through, and how often that is before the older ones are.
_COLLECTED_AFTER = (20_000, 20, 20)


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
    write_log_aside()
    uvloop.run(_serve(build, config, load, file))


def run_workers(
    build: Callable[[RouterConfig, WorkerPlace | None], Server],
    load: Callable[[], RouterConfig],
    file: Path | None = None,
) -> None:
    """Do the same in `listen.workers` processes that share ports, or in this one where that is 1."""
    config = load()
    if config.listen.workers == 1:
        run(lambda config: build(config, None), load, file)
        return
    start_log(config.observe.log_level, formatter(config.observe.log_format))
    with closing(Ports(config)) as ports:

        def serve(place: WorkerPlace, again: bool) -> None:
            ports.close()
            # Not before: a thread does not come along into a forked process.
            write_log_aside()
            uvloop.run(
                _serve(
                    lambda config: build(config, place),
                    ports.settled(config),
                    lambda: ports.settled(load()),
                    file,
                    place,
                    again,
                )
            )

        def longest_drain_seconds() -> float:
            known = [config.limits]
            # Workers may have taken up other options since.
            with suppress(SettingsError, OSError, ValueError):
                known.append(load().limits)
            return max(limits.drain_seconds for limits in known)

        Supervisor(config.listen.workers, serve, longest_drain_seconds).run()


class _Orders:
    """What a server is told to do while it runs."""

    def __init__(self) -> None:
        self.asked, self.insisted, self.changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._signalled = False

    def signalled(self) -> None:
        """End; and the second time, at once."""
        (self.insisted if self._signalled else self.asked).set()
        self._signalled = True

    def take(self, kind: Kind) -> None:
        """Take an order of the supervisor. It and a signal may say the same, which is not to insist."""
        if kind is Kind.RELOAD:
            self.changed.set()
            return
        self.asked.set()
        if kind is Kind.INSIST:
            self.insisted.set()


async def _serve(
    build: Callable[[RouterConfig], Server],
    config: RouterConfig,
    load: Callable[[], RouterConfig],
    file: Path | None,
    place: WorkerPlace | None = None,
    again: bool = False,
) -> None:
    """Serve; as one of several workers where there is a `place`, `again` where that one died before."""
    loop = asyncio.get_running_loop()
    orders = _Orders()
    # First of all: whoever signals one that starts must not kill it.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, orders.signalled)
    loop.add_signal_handler(signal.SIGHUP, orders.changed.set)
    async with AsyncExitStack() as last:
        if place is not None:
            admit()
            await place.link.open(orders.take)
            last.push_async_callback(place.link.close)
        raise_file_limit()
        server = build(config)
        last.push_async_callback(server.stop)
        await server.start()
        _settle_memory()
        _introduce(server, config, place)
        if again:
            # It began by the options of the start: the others may have taken up newer ones since.
            orders.changed.set()
        core = server.core
        reloader = Reloader(
            load, server.reload, file, lambda: core.serving.config, core.metrics, orders.changed
        )
        reloading = asyncio.create_task(reloader.run())
        await orders.asked.wait()
        log.info("draining")
        reloading.cancel()
        await _drain(server, orders.insisted)


def _settle_memory() -> None:
    """Keep the collector from going through again and again what will stay.

    Requests leave next to nothing in circles: theirs are found all the same, a little later.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AFTER)


def _introduce(server: Server, config: RouterConfig, place: WorkerPlace | None) -> None:
    """Say where it listens: to the log, or to the supervisor, who says it once for all."""
    introduction = (
        f"listening on {server.address}, control on {server.control_address}, policy {config.policy.name}"
    )
    if place is None:
        log.info(introduction)
    else:
        place.link.serve(CoreAnswers(server.core), introduction)


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
