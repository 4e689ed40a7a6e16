"""Builds a router from its options, runs it, and ends it in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from time import monotonic

import aiohttp
import uvloop
from aiohttp import web

from router.config import RouterConfig
from router.fleet.fleet import Fleet
from router.fleet.members import MemberSource, StaticMembers
from router.fleet.sources.dns import DnsMembers
from router.gateway.debug import Debug
from router.gateway.decide import Decider
from router.gateway.gateway import Gateway
from router.gateway.prepare import Preparer
from router.gateway.relay import Relay
from router.gateway.upstream import Upstream
from router.observe.decisions import Decisions
from router.observe.layout.metrics import LayoutMetrics
from router.observe.layout.watch import LayoutWatch
from router.observe.ledger import Ledger
from router.observe.metrics import RouterMetrics
from router.observe.shadow import Shadow, Shadows
from router.observe.witness import Witness
from router.policies import load_policy
from router.settings import start_log
from router.wire.http_server import JsonErrorRunner

log = logging.getLogger("kvring")

# Headers larger than this are refused; cookies and tokens of real clients stay well below.
_HEADER_BYTES = 32 * 1024
_DRAIN_STEP_SECONDS = 0.05


class Router:
    """One router. Built within a running event loop; `address` is known once it has started."""

    def __init__(self, config: RouterConfig) -> None:
        """Build all parts; PolicyError, OSError or ValueError where the options do not fit the world."""
        self._config = config
        self._metrics = RouterMetrics()
        policy = load_policy(config.policy.name, config.policy.options)
        shadows = _shadows(config, self._metrics)
        layout = config.observe.layout
        watch = LayoutWatch(layout) if layout.sample_share > 0 else None
        if watch is not None:
            self._metrics.registry.register(LayoutMetrics(watch))
        self.preparer = Preparer(config.chain, config.models, config.limits, watch)
        self._upstream = Upstream(config.limits)
        # Probes never wait behind requests, nor follow what a replica says or the environment proxies.
        self._control = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=config.limits.idle_connection_seconds),
            trust_env=False,
        )
        self.fleet = Fleet(
            config.fleet,
            _sources(config),
            self._control,
            self.preparer.identity_of,
            self._metrics,
            monotonic,
        )
        decisions = Decisions(config.observe.explained_requests) if config.observe.explain else None
        later = asyncio.get_running_loop().call_soon
        witness = Witness(policy, config.policy.name, shadows, decisions, later)
        decider = Decider(config, self.fleet, policy, self._metrics)
        relay = Relay(
            self.fleet,
            self._upstream,
            witness,
            config.policy.name,
            config.limits,
            config.observe,
            self._metrics,
        )
        ledger = Ledger(self._metrics, config.observe.access_log)
        debug = Debug(config, self.preparer, decider, witness, decisions, shadows, watch)
        self._gateway = Gateway(
            config, self.fleet, self.preparer, decider, relay, witness, ledger, self._metrics, debug
        )
        self._runner = JsonErrorRunner(
            self._gateway.application(),
            access_log=None,
            # Otherwise a client that leaves before a plain answer is there would not be noticed.
            handler_cancellation=True,
            # Draining has waited already: what still runs when the runner is closed is cut.
            shutdown_timeout=0.5,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
        )
        self.address = ""

    async def start(self) -> None:
        """Listen, and begin to watch the fleet."""
        await self._runner.setup()
        listen = self._config.listen
        await web.TCPSite(self._runner, listen.host, listen.port).start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        await self.fleet.start()

    async def drain(self) -> None:
        """Turn unready, let what runs end within the limit, and keep serving who still comes meanwhile."""
        self._gateway.draining = True
        started = monotonic()
        limits = self._config.limits
        while monotonic() - started < limits.drain_seconds and (  # noqa: ASYNC110 - time alone may end it
            self._gateway.held or monotonic() - started < limits.drain_notice_seconds
        ):
            await asyncio.sleep(_DRAIN_STEP_SECONDS)

    async def stop(self) -> None:
        """Close everything, requests in flight included."""
        await self._runner.cleanup()
        await self.fleet.stop()
        await self._control.close()
        await self._upstream.close()
        self.preparer.close()


def _shadows(config: RouterConfig, metrics: RouterMetrics) -> Shadows:
    return Shadows(
        [
            Shadow(one.name, one.policy, load_policy(one.policy, one.options), one.sample_share, metrics)
            for one in config.observe.shadow
        ]
    )


def _sources(config: RouterConfig) -> list[MemberSource]:
    sources: list[MemberSource] = [StaticMembers(config.fleet.replicas)]
    if config.fleet.dns.host:
        sources.append(DnsMembers(config.fleet.dns))
    return sources


def run(config: RouterConfig) -> None:
    """Run a router until SIGTERM or SIGINT, then drain; a second signal ends it at once."""
    start_log(config.observe.log_level)
    uvloop.run(_serve(config))


async def _serve(config: RouterConfig) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    insisted = asyncio.Event()

    def on_signal() -> None:
        (insisted if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    router = Router(config)
    await router.start()
    log.info("listening on %s, policy %s", router.address, config.policy.name)
    await asked.wait()
    log.info("draining")
    draining = asyncio.create_task(router.drain())
    insisting = asyncio.create_task(insisted.wait())
    await asyncio.wait((draining, insisting), return_when=asyncio.FIRST_COMPLETED)
    draining.cancel()
    insisting.cancel()
    await router.stop()
