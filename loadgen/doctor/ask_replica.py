"""Asks one replica what it is, for its digest or its sidecar's, and where its KV events come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from loadgen.doctor.evidence import DigestSeen, ReplicaSeen
from loadgen.doctor.reach import Page, Reach, Silent, shown
from router.chain.digest import Digest
from router.config import RouterConfig
from router.engines.capabilities import CAPABILITIES, Matter, Told
from router.engines.detect import detect, engine_of
from router.engines.engine import EngineFacts
from router.engines.page import MetricsPage
from router.engines.sources import address
from router.fleet.members import Member
from router.wire.report import ReplicaState

_MOST_PUBLISHERS = 16


async def ask_replica(reach: Reach, member: Member, config: RouterConfig) -> ReplicaSeen:
    """Ask one replica; what it does not answer is in the result, never raised."""
    url, kind = member.url, config.fleet.engine
    seen = ReplicaSeen(url, member.name or shown(url))
    try:
        if kind in ("auto", "kvring"):
            page = await reach.get(f"{url}/state")
            seen = replace(seen, skew=page.skew)
            if kind == "kvring" or page.status not in (404, 405):
                return await _ours(reach, member, seen, page)
        return await _others(reach, seen, config)
    except (Silent, ValueError) as error:
        return replace(seen, problem=str(error))


async def _ours(reach: Reach, member: Member, seen: ReplicaSeen, page: Page) -> ReplicaSeen:
    if page.status != 200:
        loading = ": it is still loading, or broken" if page.status == 503 else ""
        return replace(seen, kind="kvring", problem=f"/state answers {page.status}{loading}")
    state = ReplicaState.from_json(page.json())
    seen = replace(
        seen,
        name=member.name or state.name,
        kind="kvring",
        ready=state.ready and not state.draining,
        state=state,
        tells_cached=True,
    )
    try:
        metrics = await reach.get(f"{seen.url}/metrics")
        caches = MetricsPage(metrics.body).labels("vllm:cache_config_info") if metrics.status == 200 else []
        told = {cache.get("enable_prefix_caching") for cache in caches}
        seen = replace(
            seen, prefix_caching={"True": True, "False": False}.get(told.pop() or "") if told else None
        )
    except (Silent, ValueError):
        pass
    return replace(seen, digest=await _digest(reach, f"{seen.url}/digest"))


async def _others(reach: Reach, seen: ReplicaSeen, config: RouterConfig) -> ReplicaSeen:
    get, kind, events = reach.of(seen.url), config.fleet.engine, config.fleet.events
    engine = engine_of("plain" if kind in ("auto", "kvring") else kind)
    page = await reach.get(f"{seen.url}/health")
    seen = replace(seen, skew=page.skew or seen.skew)
    if not await engine.ready(get):
        return replace(seen, problem="/health says that it is not ready")
    if kind == "auto":
        engine = await detect(get)
    host = urlsplit(seen.url).hostname or ""
    facts = await engine.facts(get, host, events)
    seen = replace(seen, kind=engine.kind, ready=True, facts=facts, prefix_caching=facts.prefix_caching)
    if engine.kind == "sglang":
        seen = replace(seen, tells_cached=_flag(await _server_info(reach, seen.url), "enable_cache_report"))
    if events.source == "replica":
        return replace(seen, deaf=await _deaf(reach, seen.url, facts))
    if events.source == "sidecar":
        sidecar = address(host, events.sidecar_port).replace("tcp://", "http://")
        return replace(seen, digest=await _digest(reach, f"{sidecar}/digest"))
    return seen


async def _digest(reach: Reach, url: str) -> DigestSeen:
    try:
        page = await reach.get(url)
        if page.status != 200:
            return DigestSeen(f"{shown(url)} answers {page.status}{_reason(page)}")
        body = page.json()
        digest = Digest.from_json(body)
        return DigestSeen(identity=digest.identity, age_seconds=float(body.get("age_seconds", 0)))
    except Silent as silent:
        return DigestSeen(f"{shown(url)}: {silent}")
    except (ValueError, TypeError, AttributeError) as error:
        return DigestSeen(f"{shown(url)} answers what is no digest: {error}")


def _reason(page: Page) -> str:
    """Return what an error in the API's shape says."""
    try:
        body = page.json()
    except Silent:
        return ""
    problem = body.get("error") if isinstance(body, dict) else None
    message = problem.get("message") if isinstance(problem, dict) else None
    return f": {message[:200]}" if isinstance(message, str) else ""


async def _deaf(reach: Reach, url: str, facts: EngineFacts) -> Mapping[str, str]:
    """Return where KV events should come from and nobody listens, with why."""
    if not facts.events and CAPABILITIES[facts.engine][Matter.KV_EVENTS].told is not Told.ABSENT:
        return {shown(url): "it says that it publishes none"}
    deaf = {}
    for source in facts.events[:_MOST_PUBLISHERS]:
        endpoint, parts = source.endpoint, urlsplit(source.endpoint)
        if why := await reach.connects(parts.hostname or "", parts.port or 0):
            deaf[endpoint] = why
    return deaf


async def _server_info(reach: Reach, url: str) -> Any:
    """Return what SGLang tells of its flags; it may hold secrets, of which nothing is kept."""
    for path in ("/server_info", "/get_server_info"):
        page = await reach.get(url + path)
        if page.status == 200:
            return page.json()
    return None


def _flag(body: Any, name: str) -> bool | None:
    value = body.get(name) if isinstance(body, dict) else None
    return value if isinstance(value, bool) else None
