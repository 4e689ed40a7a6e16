"""Core: what everything that decides has alike, from options: fleet, policy, shared load, metrics, probes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from time import monotonic

import aiohttp

from router.config import RouterConfig
from router.fleet.fleet import Fleet
from router.fleet.members import StaticMembers
from router.gateway.chosen import member_sources, redis_connection, shared_load
from router.gateway.control import Control
from router.gateway.handover import Handover
from router.gateway.key_watch import watch_keys
from router.gateway.prepare import Preparer
from router.gateway.serving import Lasting, Serving, check_policies, fixed_changes
from router.gateway.siblings import Siblings
from router.http.pool import Pool
from router.observe.fingerprint import config_fingerprint, release
from router.observe.layout.metrics import LayoutMetrics
from router.observe.layout.watch import LayoutWatch
from router.observe.metrics import RouterMetrics
from router.observe.sightings import Sightings
from router.settings import SettingsError

DRAIN_STEP_SECONDS = 0.05


class Core:
    """All parts below the surface that requests come in by. Built within a running event loop."""

    def __init__(self, config: RouterConfig, siblings: Siblings | None = None) -> None:
        """Build all parts; PolicyError, OSError or ValueError where the options do not fit the world.

        `siblings` are there where this is one of several workers on one port.
        """
        # What may fail goes first, while nothing is open that would have to be closed.
        check_policies(config)
        self._redis = redis_connection(config)
        self._static = StaticMembers(config.fleet.replicas)
        sources = [self._static, *member_sources(config, self._redis)]
        self.metrics = RouterMetrics()
        layout = config.observe.layout
        watch = LayoutWatch(layout) if layout.sample_share > 0 else None
        if watch is not None:
            self.metrics.registry.register(LayoutMetrics(watch))
        self.preparer = Preparer(config.chain, config.models, config.limits, watch)
        self.pool = Pool(lambda: self.serving.config.limits)
        # Probes never wait behind requests, nor follow what a replica says or the environment proxies.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=config.limits.idle_connection_seconds),
            trust_env=False,
        )
        self.fleet = Fleet(
            config.fleet,
            sources,
            self._session,
            self.preparer.namers,
            self.metrics,
            monotonic,
        )
        self._shared_load = shared_load(config, self._redis, self.fleet, self.metrics)
        self._lasting = Lasting(
            fleet=self.fleet,
            preparer=self.preparer,
            pool=self.pool,
            metrics=self.metrics,
            watch=watch,
            sightings=Sightings(),
            later=asyncio.get_running_loop().call_soon,
        )
        self.serving = Serving.build(config, self._lasting)
        self._handover = Handover(self.now, self.fleet, self.preparer, self._session, self.metrics)
        self.fleet.on_drain(self._handover.begin)
        self.control = Control(self.fleet, self.metrics, lambda: self.serving.debug, siblings)
        self._key_watch: asyncio.Task[None] | None = None
        self._introduce(config)

    def now(self) -> Serving:
        """Return what serves by the options of now."""
        return self.serving

    async def start(self) -> None:
        """Begin to watch the fleet."""
        await self.fleet.start()
        self._key_watch = asyncio.create_task(watch_keys(self.now))
        if self._shared_load is not None:
            self._shared_load.start()

    def reload(self, config: RouterConfig) -> None:
        """Serve by other options from the next request on.

        SettingsError where a changed one needs a restart, PolicyError where a policy is unfit: then nothing
        has changed.
        """
        fixed = fixed_changes(self.serving.config, config)
        if fixed:
            raise SettingsError(f"only a restart takes up a changed {', '.join(fixed)}")
        before, self.serving = self.serving, Serving.build(config, self._lasting, self.serving)
        if before.shadows is not self.serving.shadows:
            before.shadows.give_way(self.serving.shadows)
        self.preparer.limits = config.limits
        self.fleet.options = config.fleet
        self._static.replace(config.fleet.replicas)
        logging.getLogger().setLevel(config.observe.log_level.upper())
        self._introduce(config)

    async def drain(self, held: Callable[[], int]) -> None:
        """Turn unready, and wait until nothing is `held`, within the limits.

        Who still comes meanwhile is served: it is noticed late.
        """
        self.control.draining = True
        started = monotonic()
        limits = self.serving.config.limits
        while monotonic() - started < limits.drain_seconds and (  # noqa: ASYNC110 - time alone may end it
            held() or monotonic() - started < limits.drain_notice_seconds
        ):
            await asyncio.sleep(DRAIN_STEP_SECONDS)

    async def stop(self) -> None:
        """Close everything, whatever part of it fails; who is served must have gone before."""
        async with AsyncExitStack() as last:
            # What is named last goes first.
            last.callback(self.preparer.close)
            last.push_async_callback(self.pool.close)
            last.push_async_callback(self._session.close)
            if self._redis is not None:
                last.push_async_callback(self._redis.close)
            last.push_async_callback(self.fleet.stop)
            if self._shared_load is not None:
                last.push_async_callback(self._shared_load.stop)
            last.push_async_callback(self._handover.stop)
            if self._key_watch is not None:
                last.callback(self._key_watch.cancel)

    def _introduce(self, config: RouterConfig) -> None:
        """Say in metrics what runs here, so that runs can be told apart."""
        self.metrics.introduce(release(), config.policy.name, config.observe.run, config_fingerprint(config))
