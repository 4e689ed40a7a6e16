"""Builds a router from its options, runs it, and ends it in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import aiohttp
import uvloop
from aiohttp import web

from router.config import RouterConfig
from router.fleet.fleet import Fleet
from router.fleet.members import MemberSource, StaticMembers
from router.fleet.sources.dns import DnsMembers
from router.fleet.sources.endpoint_slices import EndpointSliceMembers
from router.fleet.sources.leases import LeaseMembers
from router.gateway.control import Control
from router.gateway.frame import frame
from router.gateway.gateway import Gateway
from router.gateway.handover import Handover
from router.gateway.prepare import Preparer
from router.gateway.serving import Lasting, Serving, fixed_changes
from router.gateway.upstream import Upstream
from router.gateway.waiting import WaitingRoom
from router.observe.fingerprint import config_fingerprint, release
from router.observe.layout.metrics import LayoutMetrics
from router.observe.layout.watch import LayoutWatch
from router.observe.log_format import formatter
from router.observe.metrics import RouterMetrics
from router.observe.sightings import Sightings
from router.observe.tracing import start_tracing
from router.reload import Reloader
from router.settings import SettingsError, start_log
from router.shared.connection import Connection
from router.shared.leases import Leases
from router.shared.loads import SharedLoad
from router.shared.metrics import SharedMetrics
from router.wire.http_server import JsonErrorRunner

log = logging.getLogger("kvring")

# Headers larger than this are refused; cookies and tokens of real clients stay well below.
_HEADER_BYTES = 32 * 1024
_DRAIN_STEP_SECONDS = 0.05
_CUT_STEPS = 20


class Router:
    """One router. Built within a running event loop; `address` is known once it has started."""

    def __init__(self, config: RouterConfig) -> None:
        """Build all parts; PolicyError, OSError or ValueError where the options do not fit the world."""
        self._config = config
        self.metrics = RouterMetrics()
        layout = config.observe.layout
        watch = LayoutWatch(layout) if layout.sample_share > 0 else None
        if watch is not None:
            self.metrics.registry.register(LayoutMetrics(watch))
        self.preparer = Preparer(config.chain, config.models, config.limits, watch)
        self._upstream = Upstream(config.limits)
        # Probes never wait behind requests, nor follow what a replica says or the environment proxies.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=config.limits.idle_connection_seconds),
            trust_env=False,
        )
        self._static = StaticMembers(config.fleet.replicas)
        redis = config.redis
        self._redis: Connection | None = None
        if redis.url.get_secret_value():
            self._redis = Connection(redis.url, redis.timeout_seconds, redis.longest_pause_seconds)
        self.fleet = Fleet(
            config.fleet,
            [self._static, *_sources(config, self._redis)],
            self._session,
            self.preparer.namers,
            self.metrics,
            monotonic,
        )
        self._shared_load: SharedLoad | None = None
        if self._redis is not None:
            if redis.share_load:
                self._shared_load = SharedLoad(self._redis, redis, self.fleet, monotonic)
            self.metrics.registry.register(SharedMetrics(self._redis, self._shared_load))
        self._lasting = Lasting(
            fleet=self.fleet,
            preparer=self.preparer,
            upstream=self._upstream,
            metrics=self.metrics,
            watch=watch,
            sightings=Sightings(),
            later=asyncio.get_running_loop().call_soon,
        )
        self._room = WaitingRoom(config.limits, lambda: self.fleet.routable_count, self.metrics)
        self.fleet.on_change(self._room.changed)
        serving = Serving.build(config, self._lasting)
        self._tracing = start_tracing(config.observe.traces)
        self.gateway = Gateway(serving, self.fleet, self.preparer, self._room, self.metrics, self._tracing)
        self._handover = Handover(
            lambda: self.gateway.serving, self.fleet, self.preparer, self._session, self.metrics
        )
        self.fleet.on_drain(self._handover.begin)
        self.control = Control(self.fleet, self.metrics, lambda: self.gateway.serving.debug)
        self._introduce(config)
        self._runners = self._build_runners()
        self.address = ""
        self.control_address = ""

    async def start(self) -> None:
        """Listen, and begin to watch the fleet."""
        listen, control = self._config.listen, self._config.control
        self.address = await _listen(self._runners[0], listen.host, listen.port)
        self.control_address = self.address
        if control.port is not None:
            self.control_address = await _listen(self._runners[1], control.host, control.port)
        await self.fleet.start()
        if self._shared_load is not None:
            self._shared_load.start()

    def reload(self, config: RouterConfig) -> None:
        """Serve by other options from the next request on.

        SettingsError where a changed one needs a restart, PolicyError where a policy is unfit: then nothing
        has changed.
        """
        fixed = fixed_changes(self._config, config)
        if fixed:
            raise SettingsError(f"only a restart takes up a changed {', '.join(fixed)}")
        serving = Serving.build(config, self._lasting, self.gateway.serving)
        self._config = config
        self.gateway.serving = serving
        self._room.limits = self.preparer.limits = self._upstream.limits = config.limits
        self.fleet.options = config.fleet
        self._static.replace(config.fleet.replicas)
        logging.getLogger().setLevel(config.observe.log_level.upper())
        self._introduce(config)

    async def drain(self) -> None:
        """Turn unready, let what runs end within the limit, and keep serving who still comes meanwhile."""
        self.control.draining = True
        started = monotonic()
        limits = self._config.limits
        while monotonic() - started < limits.drain_seconds and (  # noqa: ASYNC110 - time alone may end it
            self.gateway.held or monotonic() - started < limits.drain_notice_seconds
        ):
            await asyncio.sleep(_DRAIN_STEP_SECONDS)
        if self.gateway.held:
            log.warning("%d requests did not end in time and are cut", self.gateway.held)
            # Streams end in an error event, so that nobody takes them for whole.
            self._upstream.cut()
            for _ in range(_CUT_STEPS):
                await asyncio.sleep(_DRAIN_STEP_SECONDS)
                if not self.gateway.held:
                    break

    async def stop(self) -> None:
        """Close everything, requests in flight included."""
        # Who is served goes first: discovery and clients are needed until then.
        for runner in self._runners:
            await runner.cleanup()
        await self._handover.stop()
        if self._shared_load is not None:
            await self._shared_load.stop()
        await self.fleet.stop()
        if self._redis is not None:
            await self._redis.close()
        await self._tracing.close()
        await self._session.close()
        await self._upstream.close()
        self.preparer.close()

    def _introduce(self, config: RouterConfig) -> None:
        """Say in metrics what runs here, so that runs can be told apart."""
        self.metrics.introduce(release(), config.policy.name, config.observe.run, config_fingerprint(config))

    def _build_runners(self) -> list[web.AppRunner]:
        """Build one server for the API, and one for control where it has a port of its own."""
        api, control = (web.Application(middlewares=[frame(lambda: self.control.draining)]) for _ in range(2))
        self.gateway.add_to(api.router)
        self.control.add_probes_to(api.router)
        applications = [api]
        if self._config.control.port is None:
            self.control.add_to(api.router)
        else:
            self.control.add_probes_to(control.router)
            self.control.add_to(control.router)
            applications.append(control)
        return [
            JsonErrorRunner(
                application,
                access_log=None,
                # Otherwise a client that leaves before a plain answer is there would not be noticed.
                handler_cancellation=True,
                # Draining has waited already: what still runs when the runner is closed is cut.
                shutdown_timeout=0.5,
                max_line_size=_HEADER_BYTES,
                max_field_size=_HEADER_BYTES,
            )
            for application in applications
        ]


async def _listen(runner: web.AppRunner, host: str, port: int) -> str:
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    bound, port = runner.addresses[0][:2]
    return f"http://{f'[{bound}]' if ':' in bound else bound}:{port}"


def _sources(config: RouterConfig, redis: Connection | None) -> list[MemberSource]:
    sources: list[MemberSource] = []
    if config.fleet.dns.host:
        sources.append(DnsMembers(config.fleet.dns))
    if config.fleet.kubernetes.service:
        sources.append(EndpointSliceMembers(config.fleet.kubernetes))
    if config.fleet.leases.enabled and redis is not None:
        sources.append(LeaseMembers(config.fleet.leases, Leases(redis, config.redis.pool)))
    return sources


def run(load: Callable[[], RouterConfig], file: Path | None = None) -> None:
    """Run a router by the options that `load` returns until SIGTERM or SIGINT, then drain.

    A second signal ends it at once. SIGHUP, or a change of `file`, loads the options anew.
    """
    config = load()
    start_log(config.observe.log_level, formatter(config.observe.log_format))
    uvloop.run(_serve(config, load, file))


async def _serve(config: RouterConfig, load: Callable[[], RouterConfig], file: Path | None) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    insisted = asyncio.Event()

    def on_signal() -> None:
        (insisted if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    router = Router(config)
    await router.start()
    log.info("listening on %s, control on %s, policy %s", *_introduced(router, config))
    reloader = Reloader(load, router.reload, file, lambda: router.gateway.serving.config, router.metrics)
    loop.add_signal_handler(signal.SIGHUP, reloader.ask)
    reloading = asyncio.create_task(reloader.run())
    await asked.wait()
    log.info("draining")
    reloading.cancel()
    draining = asyncio.create_task(router.drain())
    insisting = asyncio.create_task(insisted.wait())
    await asyncio.wait((draining, insisting), return_when=asyncio.FIRST_COMPLETED)
    draining.cancel()
    insisting.cancel()
    await router.stop()


def _introduced(router: Router, config: RouterConfig) -> tuple[str, str, str]:
    return router.address, router.control_address, config.policy.name
