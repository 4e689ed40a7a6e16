"""Builds an endpoint picker from its options, runs it, and ends it in order."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc
from aiohttp import web

from router.config import PickerOptions, RouterConfig
from router.gateway.core import Core
from router.gateway.frame import frame
from router.picker.addresses import Addresses
from router.picker.certificates import Certificates
from router.picker.health import Health
from router.picker.metrics import PickerMetrics
from router.picker.parts import Parts
from router.picker.pick import Picker
from router.picker.service import Service, grpc_server, listen
from router.wire.http_server import JsonErrorRunner

# Where gateways' operators expect metrics.
_CONTROL_PORT = 9090
_CUT_SECONDS = 0.5


class EndpointPicker:
    """One picker. Built within a running event loop; ports are known once it has started."""

    def __init__(self, config: RouterConfig) -> None:
        """Build all parts; PolicyError, OSError or ValueError where the options do not fit the world."""
        self._config = config
        # First, as it may fail and opens nothing that would have to be closed.
        self._credentials = _credentials(config.picker)
        self.core = Core(config)
        fleet, metrics = self.core.fleet, self.core.metrics
        self._addresses = Addresses(lambda: [replica.url for replica in fleet.replicas])
        picker = Picker(fleet, self.core.preparer, self._addresses)
        picker_metrics = PickerMetrics(metrics.registry)
        picker_metrics.unaddressed.set_function(lambda: self._addresses.unknown)
        self.service = Service(Parts(self.core.now, fleet, picker, metrics, picker_metrics))
        self._health = Health(lambda: self.core.control.ready)
        self._server = grpc_server(config)
        self._health_server = grpc_server(config)
        self._server.add_generic_rpc_handlers((self.service.handler(),))
        for server in (self._server, self._health_server):
            self._health.add_to(server)
        self._runner = self._control_runner()
        self._tasks: list[asyncio.Task[None]] = []
        self.port = self.health_port = 0
        self.address = self.control_address = ""

    async def start(self) -> None:
        """Listen, and begin to watch the fleet; OSError where a port cannot be had."""
        options, control = self._config.picker, self._config.control
        await self._runner.setup()
        port = _CONTROL_PORT if control.port is None else control.port
        await web.TCPSite(self._runner, control.host, port).start()
        host, port = self._runner.addresses[0][:2]
        self.control_address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        await self.core.start()
        self._tasks = [
            asyncio.create_task(self._addresses.follow()),
            asyncio.create_task(self._health.follow()),
        ]
        self.health_port = await listen(self._health_server, options.host, options.health_port)
        self.port = await listen(self._server, options.host, options.port, self._credentials)
        self.address = f"{options.host}:{self.port}"

    def reload(self, config: RouterConfig) -> None:
        """Serve by other options from the next request on; as Core.reload."""
        self.core.reload(config)

    async def drain(self) -> None:
        """Turn unready, and wait within the limits until what was asked for has been answered."""
        self.service.let_go()
        await self.core.drain(lambda: self.service.streams)

    async def stop(self) -> None:
        """Close everything; streams whose answers have not begun break off."""
        self.service.let_go()
        async with AsyncExitStack() as parts:
            # From the last to the first, and each whatever became of the others.
            parts.push_async_callback(self.core.stop)
            parts.push_async_callback(self._end_tasks)
            parts.push_async_callback(self._runner.cleanup)
            parts.push_async_callback(self._health_server.stop, None)
            parts.push_async_callback(self._server.stop, _CUT_SECONDS)

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _control_runner(self) -> JsonErrorRunner:
        control = self.core.control
        application = web.Application(middlewares=[frame(lambda: control.draining)])
        control.add_probes_to(application.router)
        control.add_to(application.router)
        return JsonErrorRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)


def _credentials(options: PickerOptions) -> grpc.ServerCredentials | None:
    if options.certificate_file is None or options.key_file is None:
        return None
    return Certificates(options.certificate_file, options.key_file).credentials()
