"""SGLang: load from /v1/loads, or /metrics where that is missing; the rest from /server_info."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from router.config import EventOptions
from router.engines.answers import (
    ask_health,
    ask_models,
    ask_object,
    count,
    maybe_count,
    name,
    quantity,
    share,
)
from router.engines.engine import EngineFacts, EngineLoad, EventSource, Get
from router.engines.page import MetricsPage, ask_page
from router.engines.sources import by_options, by_ports

_LOADS = "/v1/loads?include=core"
_MOST_RANKS = 256
_WILDCARDS = frozenset({"", "*", "0.0.0.0", "::", "[::]"})


class Sglang:
    """One SGLang server, with however many data parallel ranks behind it."""

    kind = "sglang"
    # Unless told otherwise by its environment, /health waits for a token to be computed.
    health_computes = True

    def __init__(self) -> None:
        self._has_loads = True

    async def ready(self, get: Get) -> bool:
        """Ask /health: 503 while it starts, ends, or computes nothing."""
        return await ask_health(get)

    async def facts(self, get: Get, host: str, options: EventOptions) -> EngineFacts:
        """Ask /server_info, under its old name too, and the models."""
        self._has_loads = True
        info = await ask_object(get, "/server_info")
        if info is None:
            info = await ask_object(get, "/get_server_info") or {}
        models = await ask_models(get)
        ranks = maybe_count(info.get("dp_size"), 1) or 1
        told = info.get("kv_events")
        block_tokens = maybe_count(told.get("block_size"), 1) if isinstance(told, dict) else None
        block_tokens = block_tokens or maybe_count(info.get("page_size"), 1)
        tokens = maybe_count(info.get("max_total_num_tokens"), 1)
        radix_off = info.get("disable_radix_cache")
        seed = maybe_count(info.get("random_seed"))
        return EngineFacts(
            engine=self.kind,
            version=name(info.get("version")),
            # Drawn anew at each start, unless the operator fixed it.
            process="" if seed is None else f"seed-{seed}",
            models=models.names,
            context_tokens=models.context_tokens or maybe_count(info.get("context_length"), 1),
            block_tokens=block_tokens,
            block_count=ranks * (tokens // block_tokens) if tokens and block_tokens else None,
            prefix_caching=not radix_off if isinstance(radix_off, bool) else None,
            events=_sources(told, host) if isinstance(told, dict) else by_options(host, options, ranks),
            adapters=models.adapters,
        )

    async def load(self, get: Get) -> EngineLoad | None:
        """Ask /v1/loads; once that is not there, /metrics until facts are asked for again."""
        if self._has_loads:
            body = await ask_object(get, _LOADS)
            if body is not None:
                return _ranks_load(body.get("loads"))
            self._has_loads = False
        page = await ask_page(get, "/metrics")
        return None if page is None else _page_load(page)


def _ranks_load(loads: object) -> EngineLoad:
    if not isinstance(loads, list) or not 1 <= len(loads) <= _MOST_RANKS:
        raise ValueError(f"/v1/loads tells the load of 1 to {_MOST_RANKS} ranks")
    if not all(isinstance(rank, dict) for rank in loads):
        raise ValueError("/v1/loads tells an object for each rank")
    tokens = [rank.get("num_waiting_uncached_tokens") for rank in loads]
    usages = [rank["token_usage"] for rank in loads if rank.get("token_usage") is not None]
    return EngineLoad(
        running=sum(count(rank.get("num_running_reqs"), "num_running_reqs") for rank in loads),
        waiting=sum(count(rank.get("num_waiting_reqs"), "num_waiting_reqs") for rank in loads),
        kv_usage=_mean([share(quantity(usage, "token_usage"), "token_usage") for usage in usages]),
        waiting_tokens=None
        if None in tokens
        else sum(count(rank_tokens, "num_waiting_uncached_tokens") for rank_tokens in tokens),
    )


def _page_load(page: MetricsPage) -> EngineLoad | None:
    running = _by_rank(page, "sglang:num_running_reqs")
    waiting = _by_rank(page, "sglang:num_queue_reqs")
    if not running or not waiting:
        return None
    usages = _by_rank(page, "sglang:token_usage")
    hits = page.total("sglang:cached_tokens")
    return EngineLoad(
        running=count(sum(running), "sglang:num_running_reqs"),
        waiting=count(sum(waiting), "sglang:num_queue_reqs"),
        kv_usage=_mean([share(usage, "sglang:token_usage") for usage in usages]),
        query_tokens=page.total("sglang:prompt_tokens"),
        hit_tokens=hits,
    )


def _by_rank(page: MetricsPage, metric: str) -> list[float]:
    """Return a value a data parallel rank: shards of one rank (tp, pp) tell the same requests again."""
    ranks: dict[str, float] = defaultdict(float)
    for sample in page.samples(metric):
        rank = sample.labels.get("dp_rank", "0")
        ranks[rank] = max(ranks[rank], quantity(sample.value, metric))
    return list(ranks.values())


def _sources(told: Mapping[str, Any], host: str) -> tuple[EventSource, ...]:
    """Read the descriptor of KV events; none where it publishes by other means than ZMQ."""
    if told.get("publisher") != "zmq":
        return ()
    own = told.get("endpoint_host")
    if not isinstance(own, str) or len(own) > 253:
        raise ValueError("/server_info tells a host of KV events that is no name")
    return by_ports(
        host if own in _WILDCARDS else own,
        count(told.get("endpoint_port_base"), "endpoint_port_base", 1),
        maybe_count(told.get("replay_endpoint_port_base")) or 0,
        told.get("topic"),
        count(told.get("dp_size", 1), "dp_size", 1),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
