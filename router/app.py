"""Builds a router from its options, and ends it in order."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from time import monotonic

from aiohttp import web

from router.config import RouterConfig
from router.gateway.core import DRAIN_STEP_SECONDS, Core
from router.gateway.frame import frame
from router.gateway.gateway import Gateway
from router.gateway.tunnel import Tunnel
from router.gateway.waiting import WaitingRoom
from router.http.server import HttpServer
from router.observe.tracing import start_tracing
from router.wire.http_server import JsonErrorRunner
from router.workers.place import WorkerPlace

log = logging.getLogger("kvring")

# Headers larger than this are refused; cookies and tokens of real clients stay well below.
_HEADER_BYTES = 32 * 1024
_CUT_STEPS = 20


class Router:
    """One router. Built within a running event loop; `address` is known once it has started."""

    def __init__(self, config: RouterConfig, place: WorkerPlace | None = None) -> None:
        """Build all parts; PolicyError, OSError or ValueError where the options do not fit the world.

        With a `place`, it is one of several workers that share its ports.
        """
        self._config = config
        self.core = core = Core(config, place)
        self._shares_ports = place is not None
        self.fleet, self.metrics, self.preparer, self.control = (
            core.fleet,
            core.metrics,
            core.preparer,
            core.control,
        )
        self._room = WaitingRoom(
            config.limits, lambda model: len(core.fleet.view(model, monotonic())), core.metrics
        )
        core.fleet.on_change(self._room.changed)
        self._tracing = start_tracing(config.observe.traces)
        self._runners = self._build_runners()
        self.gateway = Gateway(
            core.serving,
            core.fleet,
            core.preparer,
            self._room,
            core.metrics,
            self._tracing,
            Tunnel(self._control_server),
            lambda: core.control.draining,
        )
        self._server = HttpServer(self.gateway.serve, lambda: core.serving.config.limits, self.gateway.admit)
        self.address = ""
        self.control_address = ""

    async def start(self) -> None:
        """Listen, and begin to watch the fleet."""
        listen, control = self._config.listen, self._config.control
        await self._runners[0].setup()
        self.address = await self._server.listen(listen.host, listen.port, self._shares_ports)
        self.control_address = self.address
        if control.port is not None:
            self.control_address = await _listen(
                self._runners[1], control.host, control.port, self._shares_ports
            )
        await self.core.start()

    def reload(self, config: RouterConfig) -> None:
        """Serve by other options from the next request on; as Core.reload."""
        self.core.reload(config)
        self.gateway.serving = self.core.serving
        self._room.limits = config.limits

    async def drain(self) -> None:
        """Turn unready, let what runs end within the limit, and keep serving who still comes meanwhile."""
        await self.core.drain(lambda: self.gateway.held)
        if self.gateway.held:
            log.warning("%d requests did not end in time and are cut", self.gateway.held)
            await self._cut()

    async def stop(self) -> None:
        """Close everything, requests in flight included."""
        async with AsyncExitStack() as last:
            # What is named last goes first: who is served needs discovery and clients until then.
            last.push_async_callback(self.core.stop)
            last.push_async_callback(self._tracing.close)
            for runner in reversed(self._runners):
                last.push_async_callback(runner.cleanup)
            last.push_async_callback(self._server.close)
            last.push_async_callback(self._cut)

    async def _cut(self) -> None:
        """Break off the answers under way: streams end in an error event, and are not taken for whole."""
        self.core.pool.cut()
        for _ in range(_CUT_STEPS):
            if not self.gateway.held:
                break
            await asyncio.sleep(DRAIN_STEP_SECONDS)

    def _build_runners(self) -> list[web.AppRunner]:
        """Build what serves control: behind the API's port, and on a port of its own where it has one."""
        api, control = (web.Application(middlewares=[frame(lambda: self.control.draining)]) for _ in range(2))
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
                # Draining has waited already: what still runs when the runner is closed is cut.
                shutdown_timeout=0.5,
                max_line_size=_HEADER_BYTES,
                max_field_size=_HEADER_BYTES,
            )
            for application in applications
        ]

    def _control_server(self) -> asyncio.BaseProtocol:
        """Return what serves one connection to the control plane behind the API's port."""
        server = self._runners[0].server
        assert server is not None
        return server()


async def _listen(runner: web.AppRunner, host: str, port: int, shared: bool) -> str:
    await runner.setup()
    await web.TCPSite(runner, host, port, reuse_port=shared or None).start()
    bound, port = runner.addresses[0][:2]
    return f"http://{f'[{bound}]' if ':' in bound else bound}:{port}"
