"""The dashboard: a page, and what it shows of router and fleet; no prompts and no addresses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import monotonic, time
from typing import Any

import orjson
from aiohttp import web

from router.chain.chain import fingerprint
from router.fleet.fleet import Fleet
from router.fleet.replica import Replica
from router.gateway.readings import STARTED, Readings
from router.gateway.siblings import Siblings
from router.observe.merge import registry_of
from router.observe.metrics import RouterMetrics

# Pages ask every two seconds; however many are open, the fleet is looked at this often at most.
_KEEP_SECONDS = 1.0
_PAGE = Path(__file__).with_name("page")
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
# The page needs nothing but its own files and this router, and writes text as text alone.
_CONTENT_POLICY = "; ".join(
    (
        "default-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": _CONTENT_POLICY,
}


class Dashboard:
    """Handlers of the page and of `/debug/fleet`."""

    def __init__(
        self,
        fleet: Fleet,
        metrics: RouterMetrics,
        explains: Callable[[], bool],
        siblings: Siblings | None,
    ) -> None:
        """`explains` is whether single requests are explained, as the options are now.

        With `siblings`, counts and what is in flight are of all workers; the rest is as this one sees it.
        """
        self._fleet = fleet
        self._metrics = metrics
        self._explains = explains
        self._siblings = siblings
        self._files = {
            path.name: (path.read_bytes(), _TYPES[path.suffix])
            for path in _PAGE.iterdir()
            if path.suffix in _TYPES
        }
        self._started = monotonic()
        self._made: tuple[float, bool, bytes] | None = None

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the page's routes."""
        router.add_get("/", self.page)
        router.add_get("/page/{name}", self.page)

    async def page(self, request: web.Request) -> web.Response:
        """Serve one of the page's files."""
        found = self._files.get(request.match_info.get("name", "index.html"))
        if found is None:
            raise web.HTTPNotFound
        body, kind = found
        # Asked for anew each time: another release may serve here the next time.
        headers = _HEADERS | {"Cache-Control": "no-cache"}
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    async def fleet(self, draining: bool) -> web.Response:
        """Tell how the router and each replica are."""
        now = monotonic()
        made = self._made
        if made is None or made[1] is not draining or now - made[0] >= _KEEP_SECONDS:
            told = self._told(await self._readings(), now, draining)
            made = self._made = now, draining, orjson.dumps(told)
        headers = _HEADERS | {"Cache-Control": "no-store"}
        return web.Response(body=made[2], content_type="application/json", headers=headers)

    async def _readings(self) -> Readings:
        if self._siblings is None:
            return Readings(self._metrics.registry)
        return Readings(registry_of(await self._siblings.families()))

    def _told(self, readings: Readings, now: float, draining: bool) -> dict[str, Any]:
        # A second address of a replica is not another one.
        replicas = [_replica(one, readings, now) for one in self._fleet.replicas if not one.twin]
        return {
            "at": time(),
            "router": self._router(readings, now, draining),
            "states": Counter(one["state"] for one in replicas),
            "totals": readings.totals(),
            "replicas": replicas,
        }

    def _router(self, readings: Readings, now: float, draining: bool) -> dict[str, Any]:
        sources = self._fleet.members_told.items()
        return {
            **readings.introduction,
            **self._worker(),
            "uptime_seconds": self._uptime_seconds(readings, now),
            "in_flight": int(readings.one("kvring_in_flight_requests")),
            "waiting": int(readings.one("kvring_waiting_requests")),
            "ready": not draining and self._fleet.routable_count > 0,
            "draining": draining,
            "explains": self._explains(),
            "sources": [{"kind": kind, "members": members} for kind, members in sources],
            "redis_up": readings.redis_up,
            "reloads": readings.reloads,
        }

    def _uptime_seconds(self, readings: Readings, now: float) -> float:
        # All workers say the same: another one may answer the next time, or this one be a new one by then.
        return now - self._started if self._siblings is None else time() - readings.one(STARTED)

    def _worker(self) -> dict[str, Any]:
        if self._siblings is None:
            return {}
        return {"worker": {"number": self._siblings.number, "count": self._siblings.count}}


def _replica(replica: Replica, readings: Readings, now: float) -> dict[str, Any]:
    load = replica.load.view(now)
    heard = replica.load.heard_at > float("-inf")
    name = replica.name or replica.anonymous_name
    return {
        "name": name,
        "engine": replica.engine,
        "state": replica.stands(now).value,
        "models": replica.models,
        "work_seconds": load.work_seconds,
        "wait_seconds": load.wait_seconds(now),
        "in_flight": readings.in_flight(name, replica.load.in_flight),
        "running": load.running if heard else None,
        "waiting": load.waiting if heard else None,
        "kv_usage": load.kv_usage if heard else None,
        **readings.of(name),
        "digest_age_seconds": now - replica.digest_at if replica.digest is not None else None,
        "mismatch": replica.mismatch,
        # Which life of its cache this is: epochs of some engines are long.
        "life": fingerprint(replica.epoch.encode())[:8],
    }
