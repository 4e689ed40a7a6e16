"""Builds a replica from its options, and runs it until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from secrets import token_hex
from time import monotonic

import uvloop
from aiohttp import web

from replica.block_pool import BlockPool
from replica.digests import DigestKeeper
from replica.engine import Engine
from replica.events import EventLog
from replica.generation import Generation
from replica.handover import HandoverDesk
from replica.lease import LeaseKeeper
from replica.load import WorkLoad
from replica.loading import Loaded, load
from replica.metrics import Metrics, Readings
from replica.options import ReplicaOptions
from replica.prepare import Preparer
from replica.prewarm import Prewarmer
from replica.publisher import ZmqPublisher
from replica.scheduler import Scheduler
from replica.server import Ready, Server
from replica.service import Service
from router.settings import start_log
from router.wire.http_server import JsonErrorRunner

_log = logging.getLogger(__name__)

_STOP_SECONDS = 10.0
# With no tokenizer any word is a token.
_ALL_WORDS = 2**32


class RunningReplica:
    """A replica that listens. Made by `start`."""

    def __init__(self, options: ReplicaOptions) -> None:
        self.options = options
        self.host = options.host
        self.port = options.port
        self.metrics = Metrics(options.model)
        self.server = Server(options, token_hex(8), self.metrics)
        self._executor = ThreadPoolExecutor(options.limits.threads, thread_name_prefix="prepare")
        self._runner = JsonErrorRunner(
            self.server.application(),
            handler_cancellation=True,
            keepalive_timeout=options.keepalive_seconds,
            access_log=None,
            shutdown_timeout=1.0,
        )
        self._loading: asyncio.Task[None] | None = None
        self.metrics.watch_draining(lambda: self.server.draining)
        self._lease: LeaseKeeper | None = None
        if options.lease.redis.get_secret_value():
            self._lease = LeaseKeeper(options.lease, options.name, self.server.uid)

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def service(self) -> Service:
        """The service; RuntimeError while the model loads."""
        if self.server.ready is None:
            raise RuntimeError("the replica is still loading")
        return self.server.ready.service

    async def open(self) -> None:
        """Listen, and begin to load."""
        self._open_events()
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.options.host, self.options.port, backlog=1024)
        try:
            await site.start()
        except OSError:
            await self.stop()
            raise
        self.host, self.port = self._runner.addresses[0][:2]
        if self._lease is not None:
            self._lease.start(self.host, self.port)
        self._loading = asyncio.create_task(self._load())

    async def loaded(self) -> None:
        """Wait until the model is loaded; raises what stopped it from loading."""
        assert self._loading is not None
        await asyncio.shield(self._loading)

    async def drain(self) -> None:
        """Refuse new work from now on, let running answers finish, then end those that take too long."""
        self.server.draining = True
        if self._lease is not None:
            self._lease.drain()
        if self.server.ready is None:
            return
        linger = asyncio.create_task(asyncio.sleep(self.options.linger_seconds))
        service = self.server.ready.service
        service.end_prewarms()
        try:
            async with asyncio.timeout(self.options.drain_seconds):
                await service.drained()
        except TimeoutError:
            _log.warning("%d sequences did not finish in time and are ended", service.leased)
            service.fail_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await service.drained()
        await linger

    async def stop(self) -> None:
        """Stop at once; running requests are cut."""
        self.server.draining = True
        if self._loading is not None and not self._loading.done():
            self._loading.cancel()
            with suppress(asyncio.CancelledError):
                await self._loading
        if self._lease is not None:
            await self._lease.stop()
        await self._runner.cleanup()
        if self.server.ready is not None and not await self.server.ready.service.stop(_STOP_SECONDS):
            _log.warning("the running step goes on; its thread is left behind")
        if self.server.events is not None:
            self.server.events.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _open_events(self) -> None:
        """Bind early: a port that is taken stops the start, and followers are there before events are."""
        options = self.options
        if not options.events.enabled:
            return
        events = self.server.events = ZmqPublisher(options.events, options.chain.block_tokens)
        self.metrics.watch_events(lambda: (events.published, events.dropped))
        events.start()

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        loaded = await loop.run_in_executor(None, load, self.options)
        self.server.ready = self._assemble(loaded)
        _log.info("replica %s serves %s on %s", self.options.name, self.options.model, self.url)

    def _assemble(self, loaded: Loaded) -> Ready:
        options, runner, namer = self.options, loaded.runner, loaded.namer
        log = EventLog(self.server.events) if self.server.events is not None else None
        pool = BlockPool(runner.block_count, runner.block_tokens, log)
        work = WorkLoad(loaded.meter)
        scheduler = Scheduler(
            pool,
            namer,
            work,
            block_tokens=runner.block_tokens,
            max_running=options.scheduler.max_running,
            max_batch_tokens=options.scheduler.max_batch_tokens,
            reuse=options.enable_prefix_caching,
        )
        engine = Engine(
            runner,
            scheduler,
            work,
            self.metrics.observe_step,
            options.digest_seconds,
            log.flush if log is not None else None,
        )
        service = Service(
            engine,
            work,
            max_requests=options.scheduler.max_running + options.scheduler.max_waiting,
            observe=self.metrics.observe_output,
        )
        tokenizer = namer.tokenizer
        preparer = Preparer(
            namer=namer,
            context_tokens=min(runner.context_tokens, runner.block_count * runner.block_tokens),
            vocabulary=tokenizer.tokenizer.get_vocab_size() if tokenizer else _ALL_WORDS,
            end_ids=loaded.end_ids,
            default_answer_tokens=options.limits.default_answer_tokens,
        )
        generation = Generation(
            service, preparer, options.model, options.limits, loaded.defaults, self._executor
        )
        digests = DigestKeeper(namer.identity.fingerprint, self.server.epoch_of, self._executor)
        handover = HandoverDesk()
        readings = Readings(
            lambda: engine.snapshot, service.report, lambda: service.prefill, lambda: handover.given_count
        )
        self.metrics.watch(readings, namer.identity, options.enable_prefix_caching)
        return Ready(
            service=service,
            generation=generation,
            digests=digests,
            prewarmer=Prewarmer(
                service, preparer, self._executor, options.model, options.enable_prefix_caching
            ),
            handover=handover,
            identity=namer.identity,
            context_tokens=preparer.context_tokens,
            since=monotonic(),
        )


async def start(options: ReplicaOptions, *, wait: bool = True) -> RunningReplica:
    """Start a replica on this event loop; with `wait`, return when its model is loaded."""
    replica = RunningReplica(options)
    await replica.open()
    if wait:
        try:
            await replica.loaded()
        except BaseException:
            await replica.stop()
            raise
    return replica


def run(options: ReplicaOptions) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal exits at once."""
    start_log(options.log_level)
    uvloop.run(_serve(options))


async def _serve(options: ReplicaOptions) -> None:
    replica = RunningReplica(options)
    told = asyncio.Event()

    def on_signal() -> None:
        if told.is_set():
            os._exit(128 + signal.SIGTERM)
        told.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await replica.open()
    waiting = asyncio.create_task(told.wait())
    loading = asyncio.create_task(replica.loaded())
    try:
        await asyncio.wait((waiting, loading), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
        await waiting
        await replica.drain()
    finally:
        loading.cancel()
        await replica.stop()
    if replica.server.ready is None:
        # The thread that loads cannot be told to end, and would hold the process for as long as that takes.
        os._exit(0)
