"""Control: what operators and probes ask of a router, on a port of its own or on the API's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from aiohttp import web

from router.fleet.fleet import Fleet
from router.gateway.dashboard import Dashboard
from router.gateway.debug import Debug
from router.gateway.siblings import Siblings
from router.observe.metrics import RouterMetrics

PROBE_PATHS = ("/healthz", "/readyz")


class Control:
    """Handlers of probes, metrics, explanations and the page."""

    def __init__(
        self, fleet: Fleet, metrics: RouterMetrics, debug: Callable[[], Debug], siblings: Siblings | None
    ) -> None:
        """`debug` returns the explaining part of now's options; one of several workers has `siblings`."""
        self._fleet = fleet
        self._metrics = metrics
        self._debug = debug
        self._siblings = siblings
        self._dashboard = Dashboard(fleet, metrics, lambda: debug().explains, siblings)
        self.draining = False

    @property
    def ready(self) -> bool:
        """Whether requests can be served."""
        return not self.draining and self._fleet.routable_count > 0

    def add_probes_to(self, router: web.UrlDispatcher) -> None:
        """Add what load balancers ask for."""
        for path, handler in zip(PROBE_PATHS, (self.healthz, self.readyz), strict=True):
            router.add_get(path, handler)

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add everything else."""
        self._dashboard.add_to(router)
        router.add_get("/metrics", self.metrics)
        # Always there, as options change while it runs; what is turned off answers 404.
        router.add_get("/debug/fleet", self.fleet)
        router.add_get("/debug/decisions", self.decisions)
        router.add_post("/debug/explain", self.explain_body)
        router.add_get("/debug/explain/{request_id}", self.explain_request)
        router.add_get("/debug/layout", self.layout)
        router.add_get("/debug/shadow", self.shadow)

    async def healthz(self, request: web.Request) -> web.Response:
        """Tell that the process lives. Depends on nothing else."""
        return web.json_response({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        """Tell whether requests can be served. Never asks Redis."""
        if self.draining:
            return web.json_response({"status": "draining"}, status=503)
        usable = self._fleet.routable_count
        total = len(self._fleet.replicas)
        if not usable:
            return web.json_response({"status": "not ready", "reason": self._reason(total)}, status=503)
        return web.json_response({"status": "ok", "usable_replicas": usable, "replicas": total})

    async def metrics(self, request: web.Request) -> web.Response:
        """Expose the metrics, of all workers where there are several."""
        if self._siblings is not None:
            body = await self._siblings.metrics()
        else:
            self._fleet.observe()
            body = self._metrics.render()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def fleet(self, request: web.Request) -> web.Response:
        """Tell how the router and each replica are."""
        return await self._dashboard.fleet(self.draining)

    async def decisions(self, request: web.Request) -> web.Response:
        """Tell of the last decisions."""
        return await self._debug().decisions(request)

    async def explain_body(self, request: web.Request) -> web.Response:
        """Rank for a request's body."""
        return await self._debug().explain_body(request)

    async def explain_request(self, request: web.Request) -> web.Response:
        """Explain one of the last requests."""
        return await self._debug().explain_request(request, self._siblings)

    async def layout(self, request: web.Request) -> web.Response:
        """Report what layouts cost."""
        return await self._debug().layout(request)

    async def shadow(self, request: web.Request) -> web.Response:
        """Report on the shadow policies."""
        return await self._debug().shadow(request)

    def _reason(self, total: int) -> str:
        if total:
            failing = Counter(one.failing for one in self._fleet.replicas if one.failing).most_common(1)
            why = f", most of all since: {failing[0][0]}" if failing else ""
            return f"none of {total} replicas is usable{why}"
        silent = self._fleet.silent_sources
        if silent:
            return f"members are not known yet: no answer from {', '.join(silent)}"
        return "the fleet has no replica"
