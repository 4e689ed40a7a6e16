"""vLLM: load and cache figures from /metrics, models and adapters from /v1/models, events as listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router.config import EventOptions
from router.engines.answers import ask_health, ask_json, ask_models, ask_object, count, maybe_count, name
from router.engines.engine import EngineFacts, EngineLoad, EventSource, Get
from router.engines.page import MetricsPage, ask_page
from router.engines.sources import by_options, resolved, source

_TRUTH = {"True": True, "False": False}


class Vllm:
    """One vLLM server, with however many data parallel engines behind it."""

    kind = "vllm"
    health_computes = False

    async def ready(self, get: Get) -> bool:
        """Ask /health: 503 tells that the engine behind it died."""
        return await ask_health(get)

    async def facts(self, get: Get, host: str, options: EventOptions) -> EngineFacts:
        """Ask for version, models, metrics and event sources."""
        version = await ask_object(get, "/version") or {}
        models = await ask_models(get)
        page = await ask_page(get, "/metrics") or MetricsPage(b"")
        caches = page.labels("vllm:cache_config_info")
        listed = await ask_json(get, "/kv_event_sources")
        ranks = {sample.labels.get("engine", "0") for sample in page.samples("vllm:num_requests_running")}
        counts = [_number(cache.get("num_gpu_blocks")) for cache in caches]
        caching = _agreed(caches, "enable_prefix_caching")
        return EngineFacts(
            engine=self.kind,
            version=name(version.get("version")),
            process=page.process,
            models=models.names,
            context_tokens=models.context_tokens,
            block_tokens=_number(_agreed(caches, "block_size")),
            block_count=sum(n for n in counts if n) if counts and all(counts) else None,
            hash_algorithm=_agreed(caches, "prefix_caching_hash_algo"),
            prefix_caching=_TRUTH.get(caching),
            events=by_options(host, options, len(ranks)) if listed is None else _sources(listed, host),
            adapters=models.adapters,
        )

    async def load(self, get: Get) -> EngineLoad | None:
        """Ask for /metrics; None where statistics are turned off."""
        page = await ask_page(get, "/metrics")
        if page is None:
            return None
        running = page.total("vllm:num_requests_running")
        # The sum by reason is the same number, where a version tells only that.
        waiting = page.total("vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason")
        if running is None or waiting is None:
            return None
        return EngineLoad(
            running=count(running, "vllm:num_requests_running"),
            waiting=count(waiting, "vllm:num_requests_waiting"),
            kv_usage=page.mean_share("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc") or 0.0,
            # The gpu_ names of old versions are left alone: they counted blocks.
            query_tokens=page.total("vllm:prefix_cache_queries"),
            hit_tokens=page.total("vllm:prefix_cache_hits"),
            process=page.process,
        )


def _sources(listed: object, host: str) -> tuple[EventSource, ...]:
    """Read the list of sources; it is also known as an object by rank."""
    if isinstance(listed, dict):
        listed = [listed[rank] for rank in sorted(listed, key=lambda rank: (len(rank), rank))]
    if not isinstance(listed, list) or len(listed) > 256:
        raise ValueError("/kv_event_sources answered no list of sources")
    found: list[EventSource] = []
    for entry in listed:
        endpoint = resolved(entry.get("endpoint"), host) if isinstance(entry, dict) else ""
        if endpoint and _publishes(entry):
            replay = resolved(entry.get("replay_endpoint"), host)
            found.append(source(endpoint, replay, entry.get("topic")))
    return tuple(found)


def _publishes(entry: Mapping[str, Any]) -> bool:
    return entry.get("enable_kv_cache_events") is not False and entry.get("publisher", "zmq") == "zmq"


def _agreed(caches: Sequence[Mapping[str, str]], label: str) -> str:
    """Return what all engines say of `label`, empty where they say nothing or differ."""
    said = {cache.get(label, "") for cache in caches}
    only = said.pop() if len(said) == 1 else ""
    return "" if only == "None" or len(only) > 64 else only


def _number(text: str | None) -> int | None:
    if not text or len(text) > 15 or not (text.isascii() and text.isdigit()):
        return None
    return maybe_count(int(text), 1)
