"""What each engine tells a router, and how: the table of the README, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Told(StrEnum):
    """EXACT: the engine tells it, and it is taken as told. ESTIMATED: concluded, or told by configuration."""

    EXACT = "exact"
    ESTIMATED = "estimated"
    ABSENT = "absent"


class Matter(StrEnum):
    """What a router would like to know of a replica."""

    LOAD = "requests running and waiting"
    KV_USE = "KV use"
    QUEUED_WORK = "queued work"
    CACHED_TOKENS = "cached tokens"
    BLOCK_SIZE = "block size"
    HASH_ALGORITHM = "hash algorithm"
    KV_EVENTS = "KV events"
    RESTART = "restart"
    CONTINUATION = "continued streams"


@dataclass(frozen=True, slots=True)
class Capability:
    """How well an engine tells a matter; `how` says from where, and what must be turned on for it."""

    told: Told
    how: str


_BY_MEAN = Capability(Told.ESTIMATED, "requests that wait, at the mean prefill of this router's own")
_UNTOLD = Capability(Told.ABSENT, "not told")
_CUT = Capability(Told.ABSENT, "its streams do not tell token ids: one that breaks off ends with an error")

_VLLM = {
    Matter.LOAD: Capability(Told.EXACT, "/metrics, the sum of all engines; not with --disable-log-stats"),
    Matter.KV_USE: Capability(Told.EXACT, "/metrics, the mean of all engines; not with --disable-log-stats"),
    Matter.QUEUED_WORK: _BY_MEAN,
    Matter.CACHED_TOKENS: Capability(
        Told.EXACT, "usage of each answer with --enable-prompt-tokens-details; totals in /metrics"
    ),
    Matter.BLOCK_SIZE: Capability(Told.EXACT, "cache_config_info in /metrics"),
    Matter.HASH_ALGORITHM: Capability(Told.EXACT, "cache_config_info in /metrics, of versions that tell it"),
    Matter.KV_EVENTS: Capability(
        Told.EXACT, "/kv_event_sources with --kv-events-config; older versions by the ports of fleet.events"
    ),
    Matter.RESTART: Capability(
        Told.EXACT, "process_start_time_seconds in /metrics; not with several API servers"
    ),
    Matter.CONTINUATION: Capability(
        Told.EXACT,
        "return_token_ids, of versions that have it; text alone, and nothing that looks back on the answer",
    ),
}
_SGLANG = {
    Matter.LOAD: Capability(Told.EXACT, "/v1/loads; older versions /metrics with --enable-metrics"),
    Matter.KV_USE: Capability(Told.EXACT, "/v1/loads; older versions /metrics with --enable-metrics"),
    Matter.QUEUED_WORK: Capability(
        Told.ESTIMATED,
        "from the uncached tokens that wait, exact in /v1/loads but for a long queue; else as with vLLM",
    ),
    Matter.CACHED_TOKENS: Capability(Told.EXACT, "usage of each answer with --enable-cache-report"),
    Matter.BLOCK_SIZE: Capability(Told.EXACT, "/server_info"),
    Matter.HASH_ALGORITHM: _UNTOLD,
    Matter.KV_EVENTS: Capability(
        Told.EXACT, "/server_info with --kv-events-config; older versions by the ports of fleet.events"
    ),
    Matter.RESTART: Capability(
        Told.ESTIMATED, "another random_seed in /server_info; not where --random-seed fixes it"
    ),
    Matter.CONTINUATION: _CUT,
}
_TRTLLM = {
    Matter.LOAD: Capability(
        Told.ESTIMATED,
        "/prometheus/metrics with return_perf_metrics and enable_iter_perf_stats, as of the last iteration: "
        "an idle server may still tell its last request",
    ),
    Matter.KV_USE: Capability(Told.ESTIMATED, "/prometheus/metrics, as of the last iteration"),
    Matter.QUEUED_WORK: _BY_MEAN,
    Matter.CACHED_TOKENS: Capability(
        Told.EXACT, "usage of each answer, of versions that tell it; totals in /prometheus/metrics"
    ),
    Matter.BLOCK_SIZE: Capability(Told.EXACT, "/prometheus/metrics, once it has served a request"),
    Matter.HASH_ALGORITHM: _UNTOLD,
    Matter.KV_EVENTS: Capability(
        Told.ESTIMATED, "newer versions over ZMQ, by the ports of fleet.events: it does not tell where"
    ),
    Matter.RESTART: Capability(
        Told.ESTIMATED, "process_start_time_seconds, where its /prometheus/metrics has it"
    ),
    Matter.CONTINUATION: _CUT,
}
_LLAMACPP = {
    Matter.LOAD: Capability(
        Told.EXACT, "/metrics with --metrics; without it /slots tells those running, none that wait"
    ),
    Matter.KV_USE: Capability(Told.ESTIMATED, "prompts in busy /slots, without --metrics; else not told"),
    Matter.QUEUED_WORK: _BY_MEAN,
    Matter.CACHED_TOKENS: Capability(Told.EXACT, "usage of each answer; totals in /metrics of newer builds"),
    Matter.BLOCK_SIZE: Capability(Told.ABSENT, "it has none: each slot reuses its last prompt by the token"),
    Matter.HASH_ALGORITHM: Capability(Told.ABSENT, "it has none"),
    Matter.KV_EVENTS: Capability(Told.ABSENT, "it publishes none"),
    Matter.RESTART: Capability(
        Told.ESTIMATED,
        "another media_marker in /props of newer builds, unless LLAMA_MEDIA_MARKER fixes it",
    ),
    Matter.CONTINUATION: _CUT,
}
_PLAIN = {
    **dict.fromkeys(Matter, _UNTOLD),
    Matter.LOAD: Capability(Told.ABSENT, "not told: what this router sent there is all it knows"),
    Matter.QUEUED_WORK: Capability(Told.ESTIMATED, "the prefills that this router sent there itself"),
    Matter.CACHED_TOKENS: Capability(Told.ABSENT, "not expected; counted where usage tells them"),
    Matter.RESTART: Capability(Told.ESTIMATED, "nothing listened at its address for a while"),
    Matter.CONTINUATION: _CUT,
}

CAPABILITIES: Mapping[str, Mapping[Matter, Capability]] = MappingProxyType(
    {
        "vllm": MappingProxyType(_VLLM),
        "sglang": MappingProxyType(_SGLANG),
        "trtllm": MappingProxyType(_TRTLLM),
        "llamacpp": MappingProxyType(_LLAMACPP),
        "plain": MappingProxyType(_PLAIN),
    }
)
