"""Scripted engines: servers on loopback that answer as told, shaped like real ones, over versions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from router.engines.engine import Answer, Get

PAGE = "text/plain; version=0.0.4"


class ScriptedEngine:
    """Answers paths as told: text is a page of metrics, an int a status, all else JSON; 404 else."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        told = self.answers.get(request.path_qs, 404)
        if isinstance(told, int):
            return web.json_response({"error": {"message": "no", "code": told}}, status=told)
        if isinstance(told, web.Response):
            return told
        if isinstance(told, bytes):
            return web.Response(body=told, headers={"content-type": PAGE})
        if isinstance(told, str):
            return web.Response(text=told, headers={"content-type": PAGE})
        return web.Response(text=json.dumps(told), content_type="application/json")

    def count(self, path: str) -> int:
        return self.asked.count(path)


@asynccontextmanager
async def served(answers: dict[str, Any]) -> AsyncIterator[tuple[ScriptedEngine, Get]]:
    """Serve an engine; yield it and what fetches from it."""
    engine = ScriptedEngine(answers)
    application = web.Application()
    application.router.add_get("/{rest:.*}", engine.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as session:

        async def get(path: str) -> Answer:
            async with session.get(url + path, allow_redirects=False) as response:
                return Answer(response.status, response.content_type, await response.read())

        try:
            yield engine, get
        finally:
            await runner.cleanup()


def models(owner: str, *cards: dict[str, Any]) -> dict[str, Any]:
    """What /v1/models answers."""
    common = {"object": "model", "created": 1764473835, "owned_by": owner}
    return {"object": "list", "data": [{**common, **card} for card in cards]}


def vllm_page(
    engines: int = 1,
    *,
    usage: str = "kv_cache_usage_perc",
    total: str = "_total",
    waiting: str = 'vllm:num_requests_waiting{{engine="{e}",model_name="m"}} {n}.0\n',
    config: str = 'block_size="16",enable_prefix_caching="True",num_gpu_blocks="{blocks}",'
    'prefix_caching_hash_algo="sha256"',
    process: str = "1.76447383525e+09",
) -> str:
    """A page of vLLM's: engine e runs e + 3 requests, e + 1 wait, .25 + e / 10 of KV is used."""
    text = f"process_start_time_seconds {process}\n" if process else ""
    text += "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
    for e in range(engines):
        text += f'vllm:num_requests_running{{engine="{e}",model_name="m"}} {e + 3}.0\n'
        text += waiting.format(e=e, n=e + 1)
        text += f'vllm:{usage}{{engine="{e}",model_name="m"}} {0.25 + e / 10}\n'
        text += f'vllm:prefix_cache_queries{total}{{engine="{e}",model_name="m"}} 1.5e+06\n'
        text += f'vllm:prefix_cache_queries_created{{engine="{e}",model_name="m"}} 1.764e+09\n'
        text += f'vllm:prefix_cache_hits{total}{{engine="{e}",model_name="m"}} 1.2e+06\n'
        labels = config.format(blocks=1000 + e)
        text += f'vllm:cache_config_info{{{labels},engine="{e}",sliding_window="None"}} 1.0\n'
    return text + 'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 7.0\n'


VLLM_EVENTS = {"data_parallel_rank": 0, "endpoint": "tcp://*:5557", "replay_endpoint": None, "topic": "kv"}

VLLM: dict[str, Any] = {
    "/health": 200,
    "/version": {"version": "0.33.0"},
    "/v1/models": models(
        "vllm",
        {"id": "m", "root": "org/m", "parent": None, "max_model_len": 32_768},
        {"id": "poet", "root": "/adapters/poet", "parent": "m", "max_model_len": None},
    ),
    "/metrics": vllm_page(),
    "/kv_event_sources": [VLLM_EVENTS],
}

SGLANG_RANK: dict[str, Any] = {
    "dp_rank": 0,
    "num_running_reqs": 5,
    "num_waiting_reqs": 2,
    "num_waiting_uncached_tokens": 3000,
    "num_used_tokens": 9000,
    "num_total_tokens": 13_000,
    "max_total_num_tokens": 20_000,
    "token_usage": 0.45,
    "gen_throughput": 812.5,
    "cache_hit_rate": 0.62,
    "utilization": 0.0,
    "max_running_requests": 64,
}

SGLANG: dict[str, Any] = {
    "/health": 200,
    "/v1/models": models(
        "sglang",
        {"id": "m", "root": "m", "parent": None, "max_model_len": 40_960},
        {"id": "poet", "root": "/adapters/poet", "parent": "m"},
    ),
    "/server_info": {
        "model_path": "org/m",
        "page_size": 64,
        "dp_size": 2,
        "context_length": None,
        "disable_radix_cache": False,
        "random_seed": 731_202_551,
        "max_total_num_tokens": 20_000,
        "api_key": "secret",
        "version": "0.5.23",
        "internal_states": [{"last_gen_throughput": 1.5}],
        "kv_events": {
            "publisher": "zmq",
            "endpoint_host": "*",
            "endpoint_port_base": 5557,
            "topic": "kv",
            "block_size": 64,
            "dp_size": 2,
        },
    },
    "/v1/loads?include=core": {
        "timestamp": "2026-11-30T03:37:15+00:00",
        "version": "0.5.23",
        "loads": [SGLANG_RANK, {**SGLANG_RANK, "dp_rank": 1, "num_running_reqs": 1, "token_usage": 0.15}],
    },
}

SGLANG_PAGE = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 5.0
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 5.0
sglang:num_running_reqs{dp_rank="1",engine_type="unified",model_name="m",pp_rank="0",tp_rank="2"} 1.0
sglang:num_queue_reqs{dp_rank="0",model_name="m",tp_rank="0"} 2.0
sglang:num_queue_reqs{dp_rank="1",model_name="m",tp_rank="2"} 0.0
sglang:token_usage{dp_rank="0",model_name="m",tp_rank="0"} 0.5
sglang:token_usage{dp_rank="1",model_name="m",tp_rank="2"} 0.1
sglang:prompt_tokens_total{model_name="m"} 8.0e+06
sglang:cached_tokens_total{cache_source="device",model_name="m"} 5.0e+06
sglang:cached_tokens_total{cache_source="host",model_name="m"} 1.0e+06
"""

TRTLLM_PAGE = """\
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.76e+09
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 4.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 6.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.62
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 4096.0
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 90000.0
trtllm_prompt_cached_tokens_total{engine_type="trtllm",model_name="m"} 60000.0
"""

TRTLLM: dict[str, Any] = {
    "/health": 200,
    "/version": {"version": "1.2.0"},
    "/v1/models": models("tensorrt_llm", {"id": "m"}),
    "/prometheus/metrics": TRTLLM_PAGE,
    # Iteration statistics: reading takes them away.
    "/metrics": [{"numActiveRequests": 9, "numQueuedRequests": 9}],
}

LLAMACPP_PAGE = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 620
# HELP llamacpp:prompt_tokens_cached_total Number of prompt tokens taken from the cache
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 616
llamacpp:tokens_predicted_total 3.21457e+06
llamacpp:predicted_tokens_seconds nan
llamacpp:requests_processing 2
llamacpp:requests_deferred 3
"""

LLAMACPP: dict[str, Any] = {
    "/health": {"status": "ok"},
    "/props": {
        "default_generation_settings": {"params": {"temperature": 0.8}, "n_ctx": 1024},
        "total_slots": 2,
        "model_alias": "m",
        "model_path": "/models/m.gguf",
        "media_marker": "<__media_o2DJPN5bwzDthrfjN1eL94ylVmBBBFZz__>",
        "build_info": "b1-7e4c0a9",
        "is_sleeping": False,
    },
    "/v1/models": models(
        "llamacpp",
        {
            "id": "/models/m.gguf",
            "aliases": ["m"],
            "meta": {"n_ctx": 1024, "n_ctx_train": 8192},
        },
    ),
    "/metrics": LLAMACPP_PAGE,
    "/slots": [
        {"id": 0, "n_ctx": 1024, "speculative": False, "is_processing": False},
        {
            "id": 1,
            "n_ctx": 1024,
            "speculative": False,
            "is_processing": True,
            "id_task": 2,
            "n_prompt_tokens": 512,
            "n_prompt_tokens_processed": 0,
            "n_prompt_tokens_cache": 0,
        },
    ],
}

PLAIN: dict[str, Any] = {"/v1/models": models("openai", {"id": "m", "max_model_len": 4096})}

ENGINES: dict[str, dict[str, Any]] = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "trtllm": TRTLLM,
    "llamacpp": LLAMACPP,
    "plain": PLAIN,
}
