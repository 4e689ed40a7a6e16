"""The sidecar: serves `/digest` of the engine in its pod, so that routers need not each decode its events."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Mapping
from time import monotonic

import aiohttp
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from router.chain.namers import Namers
from router.config import RouterConfig
from router.events.counts import EventCounts, EventMetrics
from router.observe.log_format import formatter
from router.settings import start_log
from router.sidecar.digests import DigestDesk
from router.sidecar.options import SidecarOptions
from router.sidecar.watch import EngineWatch
from router.wire.errors import error_body
from router.wire.http_server import JsonErrorRunner
from router.wire.report import DIGEST_AGE_HEADER

log = logging.getLogger("kvring.sidecar")


class Sidecar:
    """One sidecar. Built within a running event loop; `address` is known once it has started."""

    def __init__(self, config: RouterConfig, options: SidecarOptions) -> None:
        """Load the tokenizers that the routers have; OSError or ValueError where one cannot be read."""
        self._options = options
        namers = Namers(
            config.chain,
            {
                name: model.tokenizer_directory
                for name, model in config.models.items()
                if model.tokenizer_directory is not None
            },
        )
        self._session = aiohttp.ClientSession(trust_env=False)
        self._watch = EngineWatch(options, config.fleet.events, namers, self._session, monotonic)
        self._desk = DigestDesk(monotonic)
        self._registry = CollectorRegistry()
        self._registry.register(EventMetrics(self._counts))
        ProcessCollector(registry=self._registry)
        application = web.Application()
        application.add_routes(
            [
                web.get("/digest", self._digest),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
            ]
        )
        self._runner = JsonErrorRunner(application, access_log=None, shutdown_timeout=0.5)
        self._watching: asyncio.Task[None] | None = None
        self.address = ""

    async def start(self) -> None:
        """Listen, and begin to watch the engine."""
        await self._runner.setup()
        await web.TCPSite(self._runner, self._options.host, self._options.port).start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._watching = asyncio.create_task(self._watch.run(), name="watch the engine")

    async def stop(self) -> None:
        """Close everything."""
        await self._runner.cleanup()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._session.close()

    async def _digest(self, request: web.Request) -> web.Response:
        follower = self._watch.follower
        served = await self._desk.serve(follower, self._watch.identity) if follower else None
        if served is None:
            reason = self._watch.reason or "what the engine holds is not known now"
            return web.Response(status=503, body=error_body(503, reason), content_type="application/json")
        # Weak: the age differs from answer to answer.
        headers = {"ETag": f'W/"{served.tag}"', DIGEST_AGE_HEADER: f"{served.age_seconds:.3f}"}
        if any(tag.value in (served.tag, "*") for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        body = {**served.digest.to_json(), "age_seconds": served.age_seconds}
        return web.json_response(body, headers=headers)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        if reason := self._watch.reason:
            return web.json_response({"status": "not ready", "reason": reason}, status=503)
        return web.json_response({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=generate_latest(self._registry), headers=headers)

    def _counts(self) -> Mapping[str, EventCounts]:
        follower = self._watch.follower
        # A pod's host is called as the pod is.
        return {socket.gethostname(): follower.counts} if follower else {}


def run(config: RouterConfig, options: SidecarOptions) -> None:
    """Run a sidecar until SIGTERM or SIGINT."""
    start_log(config.observe.log_level, formatter(config.observe.log_format))
    uvloop.run(_serve(config, options))


async def _serve(config: RouterConfig, options: SidecarOptions) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    sidecar = Sidecar(config, options)
    try:
        await sidecar.start()
        log.info("listening on %s", sidecar.address)
        await asked.wait()
    finally:
        await sidecar.stop()
