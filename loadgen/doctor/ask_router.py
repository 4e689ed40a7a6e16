"""Asks a live router what it knows: fleet, metrics, readiness, and layouts where it tells."""

from __future__ import annotations

from typing import Any

from loadgen.doctor.evidence import RoutedReplica, RouterSeen
from loadgen.doctor.figures import Figures
from loadgen.doctor.reach import Reach, Silent, shown
from router.observe.layout.report import LayoutReport


async def ask_router(reach: Reach, url: str, api_key: str | None = None) -> RouterSeen:
    """Ask it; what it does not answer is in the result, never raised."""
    place = shown(url)
    try:
        fleet = await reach.get(f"{url}/debug/fleet", api_key)
        if fleet.status == 401:
            raise Silent("/debug/fleet answers 401: give --api-key, or its control port where it has one")
        if fleet.status == 404:
            raise Silent(
                "/debug/fleet answers 404: give the control port, where control.port has one of its own"
            )
        if fleet.status != 200:
            raise Silent(f"/debug/fleet answers {fleet.status}")
        told = fleet.json()
        metrics = await reach.get(f"{url}/metrics", api_key)
        if metrics.status != 200:
            raise Silent(f"/metrics answers {metrics.status}")
        readyz = await reach.get(f"{url}/readyz")
        ready = readyz.json()
        router = told["router"]
        layout, why = await _layout(reach, url, api_key)
        return RouterSeen(
            url=place,
            version=str(router["version"]),
            policy=str(router["policy"]),
            config=str(router["config"]),
            uptime_seconds=float(router["uptime_seconds"]),
            ready=readyz.status == 200,
            reason=str(ready.get("reason") or ready.get("status") or ""),
            draining=bool(router["draining"]),
            options_current=bool(router["reloads"]["current"]),
            redis_up=router["redis_up"],
            replicas=tuple(_routed(replica) for replica in told["replicas"]),
            figures=Figures(metrics.body.decode(errors="replace")),
            layout=layout,
            why_no_layout=why,
            skew=fleet.skew,
        )
    except Silent as silent:
        return RouterSeen(place, problem=str(silent))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return RouterSeen(place, problem=f"it tells of its fleet in a form that is not known here: {error!r}")


async def serves_control(reach: Reach, url: str) -> bool:
    """Return whether an address answers what only operators should ask."""
    try:
        page = await reach.get(f"{url}/debug/fleet")
        return page.status == 200 and isinstance(page.json(), dict) and "replicas" in page.json()
    except Silent:
        return False


def _routed(told: Any) -> RoutedReplica:
    age = told["digest_age_seconds"]
    return RoutedReplica(
        name=str(told["name"]),
        engine=str(told["engine"]),
        state=str(told["state"]),
        models=tuple(map(str, told["models"])),
        mismatch=bool(told["mismatch"]),
        digest_age_seconds=None if age is None else float(age),
    )


async def _layout(reach: Reach, url: str, api_key: str | None) -> tuple[LayoutReport | None, str]:
    try:
        page = await reach.get(f"{url}/debug/layout", api_key)
        if page.status != 200:
            return None, "observe.explain is off, or observe.layout.sample_share is 0"
        return LayoutReport.from_json(page.json()), ""
    except (Silent, KeyError, TypeError, ValueError, AttributeError) as error:
        return None, f"/debug/layout cannot be read: {error}"
