"""gRPC health checks: who asks whether requests may be sent here, and whether the process lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from router.picker.service import SERVICE

# Under these names gateways and probes ask whether it is ready; "" asks about the whole server.
_READY = ("", SERVICE, "readiness", "inference-extension")
_LIVE = "liveness"
_LOOK_SECONDS = 0.1

_Status = health_pb2.HealthCheckResponse


class Health:
    """Tells what `ready` says, looked at often; that the process lives is told as long as it does."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        # Its types do not know the one for asyncio.
        self._servicer: Any = health.aio.HealthServicer()  # type: ignore[attr-defined]

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve it there too."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def follow(self) -> None:
        """Keep what is told up to date until cancelled."""
        await self._servicer.set(_LIVE, _Status.SERVING)
        told: bool | None = None
        while True:
            ready = self._ready()
            if ready is not told:
                told = ready
                for name in _READY:
                    await self._servicer.set(name, _Status.SERVING if ready else _Status.NOT_SERVING)
            await asyncio.sleep(_LOOK_SECONDS)
