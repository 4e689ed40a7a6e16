"""A scripted vLLM: the few answers from which a sidecar learns what it is, beside a publisher of events."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tests.router.events.publisher import Place


class ScriptedVllm:
    """Serves `models` (and adapters, by their base), and says that it publishes at `places`."""

    def __init__(self, *places: Place, models: tuple[str, ...] = ("m",)) -> None:
        self.places = places
        self.models = models
        self.adapters: dict[str, str] = {}
        self.healthy = True
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen."""
        application = web.Application()
        application.add_routes(
            [
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/v1/models", self._models),
                web.get("/kv_event_sources", self._sources),
            ]
        )
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Close."""
        assert self._runner is not None
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.33.0"})

    async def _models(self, request: web.Request) -> web.Response:
        cards: list[dict[str, Any]] = [{"id": name, "owned_by": "vllm"} for name in self.models]
        cards += [{"id": name, "owned_by": "vllm", "parent": base} for name, base in self.adapters.items()]
        return web.json_response({"object": "list", "data": cards})

    async def _sources(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                str(rank): {
                    "enable_kv_cache_events": True,
                    "publisher": "zmq",
                    "endpoint": place.endpoint,
                    "replay_endpoint": place.replay_endpoint or None,
                    "topic": place.topic,
                }
                for rank, place in enumerate(self.places)
            }
        )
