"""Builds a router from its options, runs it, and ends it in order."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from time import monotonic
from typing import Self

import aiohttp
import uvloop
from aiohttp import web

from router.config import RouterConfig
from router.fleet.fleet import Fleet
from router.fleet.members import DnsMembers, MemberSource, StaticMembers
from router.gateway.gateway import Gateway
from router.gateway.prepare import Preparer
from router.gateway.relay import Relay
from router.gateway.upstream import Upstream
from router.observe.ledger import Ledger
from router.observe.metrics import RouterMetrics
from router.policies import load_policy

log = logging.getLogger("kvring")

# Headers larger than this are refused; cookies and tokens of real clients stay well below.
_HEADER_BYTES = 32 * 1024
_DRAIN_STEP_SECONDS = 0.05


class Router:
    """A running router. Use `start`; `address` is where it listens."""

    def __init__(self, config: RouterConfig) -> None:
        """Build all parts; PolicyError or OSError where the options do not fit the world."""
        self._config = config
        self._preparer = Preparer(config.chain, config.models, config.limits)
        self._policy = load_policy(config.policy.name, config.policy.options)
        self._upstream: Upstream
        self._control: aiohttp.ClientSession
        self._runner: web.AppRunner
        self._gateway: Gateway
        self._fleet: Fleet
        self.address = ""

    @classmethod
    async def start(cls, config: RouterConfig) -> Self:
        """Build a router, listen, and begin to watch the fleet."""
        router = cls(config)
        metrics = RouterMetrics()
        router._upstream = Upstream(config.limits)
        # Probes never wait behind requests, nor follow what a replica says or the environment proxies.
        router._control = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=config.limits.idle_connection_seconds),
            trust_env=False,
        )
        router._fleet = Fleet(
            config.fleet,
            _sources(config),
            router._control,
            router._preparer.identity_of,
            metrics,
            monotonic,
        )
        relay = Relay(
            router._fleet,
            router._upstream,
            router._policy.commit,
            config.policy.name,
            config.limits,
            config.observe,
            metrics,
        )
        router._gateway = Gateway(
            config,
            router._fleet,
            router._preparer,
            router._policy,
            relay,
            Ledger(metrics, config.observe.access_log),
            metrics,
        )
        router._runner = web.AppRunner(
            router._gateway.application(),
            access_log=None,
            # Otherwise a client that leaves before a plain answer is there would not be noticed.
            handler_cancellation=True,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
        )
        await router._runner.setup()
        site = web.TCPSite(router._runner, config.listen.host, config.listen.port, reuse_address=True)
        await site.start()
        host, port = router._runner.addresses[0][:2]
        router.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        await router._fleet.start()
        return router

    async def drain(self) -> None:
        """Turn unready, let what runs end within the limit, and keep serving who still comes meanwhile."""
        self._gateway.draining = True
        started = monotonic()
        limits = self._config.limits
        while monotonic() - started < limits.drain_seconds and (
            self._gateway.held or monotonic() - started < limits.drain_notice_seconds
        ):
            await asyncio.sleep(_DRAIN_STEP_SECONDS)

    async def stop(self) -> None:
        """Close everything, requests in flight included."""
        await self._runner.cleanup()
        await self._fleet.stop()
        await self._control.close()
        await self._upstream.close()
        self._preparer.close()


def _sources(config: RouterConfig) -> list[MemberSource]:
    sources: list[MemberSource] = [StaticMembers(config.fleet.replicas)]
    if config.fleet.dns.host:
        sources.append(DnsMembers(config.fleet.dns))
    return sources


def run(config: RouterConfig) -> None:
    """Run a router until SIGTERM or SIGINT, then drain; a second signal ends it at once."""
    logging.basicConfig(
        stream=sys.stderr,
        level=config.observe.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    uvloop.run(_serve(config))


async def _serve(config: RouterConfig) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    insisted = asyncio.Event()

    def on_signal() -> None:
        (insisted if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    router = await Router.start(config)
    log.info("listening on %s, policy %s", router.address, config.policy.name)
    await asked.wait()
    log.info("draining")
    draining = asyncio.create_task(router.drain())
    insisting = asyncio.create_task(insisted.wait())
    await asyncio.wait((draining, insisting), return_when=asyncio.FIRST_COMPLETED)
    draining.cancel()
    insisting.cancel()
    await router.stop()
