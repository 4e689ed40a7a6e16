"""TensorRT-LLM (trtllm-serve): load and cache figures from its Prometheus page, the rest from /v1/models.

Its JSON at /metrics is left alone: reading it takes away from other readers what was read.
"""

from __future__ import annotations

from router.config import EventOptions
from router.engines.answers import ask_health, ask_models, ask_object, count, maybe_count, name
from router.engines.engine import EngineFacts, EngineLoad, Get
from router.engines.page import MetricsPage, ask_page
from router.engines.sources import by_options

# Where trtllm-serve has its page, then where others put it.
PATHS = ("/prometheus/metrics", "/metrics")


class Trtllm:
    """One trtllm-serve."""

    kind = "trtllm"
    health_computes = False

    def __init__(self) -> None:
        self._paths: tuple[str, ...] = PATHS
        self._path: str | None = PATHS[0]

    async def ready(self, get: Get) -> bool:
        """Ask /health."""
        return await ask_health(get)

    async def facts(self, get: Get, host: str, options: EventOptions) -> EngineFacts:
        """Ask for version, models and metrics. Where KV events come from it does not tell."""
        version = await ask_object(get, "/version") or {}
        models = await ask_models(get)
        page = await self._find_page(get) or MetricsPage(b"")
        return EngineFacts(
            engine=self.kind,
            version=name(version.get("version")),
            process=page.process,
            models=models.names,
            context_tokens=models.context_tokens,
            block_tokens=maybe_count(page.total("trtllm_kv_cache_tokens_per_block"), 1),
            block_count=maybe_count(page.total("trtllm_kv_cache_max_blocks"), 1),
            events=by_options(host, options, 1),
            adapters=models.adapters,
        )

    async def load(self, get: Get) -> EngineLoad | None:
        """Ask where the page last was; None where it is turned off, or no iteration has been counted yet."""
        page = None if self._path is None else await ask_page(get, self._path)
        if page is None:
            return None
        running = page.total("trtllm_num_requests_running")
        waiting = page.total("trtllm_num_requests_waiting")
        if running is None or waiting is None:
            return None
        prompts = page.total("trtllm_prompt_tokens")
        return EngineLoad(
            running=count(running, "trtllm_num_requests_running"),
            waiting=count(waiting, "trtllm_num_requests_waiting"),
            kv_usage=page.mean_share("trtllm_kv_cache_utilization") or 0.0,
            query_tokens=prompts,
            hit_tokens=page.total("trtllm_prompt_cached_tokens"),
            process=page.process,
        )

    async def _find_page(self, get: Get) -> MetricsPage | None:
        """Ask all places where the page may be; one that once had no page is not asked again."""
        self._path = None
        for path in self._paths:
            page = await ask_page(get, path)
            if page is not None:
                self._path = path
                return page
            if path != PATHS[0]:
                self._paths = PATHS[:1]
        return None
