"""vLLM, over its versions: load, facts, adapters and event sources, from answers shaped like its own."""

from __future__ import annotations

from typing import Any

import pytest

from router.config import EventOptions
from router.engines.engine import EngineLoad, EventSource
from router.engines.vllm import Vllm
from tests.router.engines.scripted_engines import VLLM, VLLM_EVENTS, models, served, vllm_page

OFF = EventOptions()
OWN = EventOptions(source="replica", port=6000, replay_port=7000, topic="kv@")

BY_REASON = (
    'vllm:num_requests_waiting_by_reason{{engine="{e}",model_name="m",reason="capacity"}} {n}.0\n'
    'vllm:num_requests_waiting_by_reason{{engine="{e}",model_name="m",reason="deferred"}} 1.0\n'
)


async def test_a_new_version_tells_all() -> None:
    async with served(VLLM) as (engine, get):
        adapter = Vllm()
        assert await adapter.ready(get)
        facts = await adapter.facts(get, "10.1.2.3", OFF)
        asked = len(engine.asked)
        load = await adapter.load(get)
        assert engine.asked[asked:] == ["/metrics"]
    assert facts.engine == "vllm"
    assert facts.version == "0.33.0"
    assert facts.process == "1764473835.25"
    assert facts.models == ("m", "poet")
    assert facts.adapters == {"poet": "m"}
    assert facts.context_tokens == 32_768
    assert facts.block_tokens == 16
    assert facts.block_count == 1000
    assert facts.hash_algorithm == "sha256"
    assert facts.prefix_caching is True
    assert facts.events == (EventSource("tcp://10.1.2.3:5557", "", "kv"),)
    assert load == EngineLoad(3, 1, 0.25, None, 1.5e6, 1.2e6, "1764473835.25")


async def test_its_own_model_comes_before_adapters_whatever_their_order() -> None:
    cards = (
        {"id": "poet", "parent": "m"},
        {"id": "m"},
        {"id": "alias of m"},
        {"id": "critic", "parent": "m"},
    )
    async with served({**VLLM, "/v1/models": models("vllm", *cards)}) as (_, get):
        facts = await Vllm().facts(get, "h", OFF)
    assert facts.model == "m"
    assert facts.models == ("m", "alias of m", "poet", "critic")


async def test_engines_are_added_up() -> None:
    async with served({**VLLM, "/metrics": vllm_page(3)}) as (_, get):
        load = await Vllm().load(get)
        facts = await Vllm().facts(get, "h", OFF)
    assert load is not None
    assert (load.running, load.waiting) == (3 + 4 + 5, 1 + 2 + 3)
    assert load.kv_usage == pytest.approx(0.35)
    assert load.hit_tokens == 3 * 1.2e6
    assert facts.block_count == 1000 + 1001 + 1002
    assert facts.block_tokens == 16


@pytest.mark.parametrize(
    ("page", "load"),
    [
        pytest.param(
            vllm_page(usage="gpu_cache_usage_perc", total=""),
            EngineLoad(3, 1, 0.25, None, 1.5e6, 1.2e6, "1764473835.25"),
            id="old-names",
        ),
        pytest.param(
            vllm_page().replace("prefix_cache_", "gpu_prefix_cache_"),
            EngineLoad(3, 1, 0.25, None, None, None, "1764473835.25"),
            id="old-counters-of-blocks",
        ),
        pytest.param(
            vllm_page(waiting=BY_REASON),
            EngineLoad(3, 2, 0.25, None, 1.5e6, 1.2e6, "1764473835.25"),
            id="by-reason",
        ),
        pytest.param(
            vllm_page(waiting='vllm:num_requests_waiting{{engine="{e}"}} {n}.0\n' + BY_REASON),
            EngineLoad(3, 1, 0.25, None, 1.5e6, 1.2e6, "1764473835.25"),
            id="both-are-counted-once",
        ),
        pytest.param(
            vllm_page(process=""), EngineLoad(3, 1, 0.25, None, 1.5e6, 1.2e6, ""), id="several-api-servers"
        ),
        pytest.param("process_start_time_seconds 1.0\n", None, id="log-stats-disabled"),
        pytest.param(404, None, id="no-metrics"),
    ],
)
async def test_load_over_versions(page: Any, load: EngineLoad | None) -> None:
    async with served({**VLLM, "/metrics": page}) as (_, get):
        assert await Vllm().load(get) == load


async def test_an_old_version_tells_less() -> None:
    old = {
        "/health": 200,
        "/v1/models": models("vllm", {"id": "m"}),
        "/metrics": vllm_page(2, config='block_size="32",num_gpu_blocks="None"'),
    }
    async with served(old) as (_, get):
        facts = await Vllm().facts(get, "10.0.0.9", OFF)
        guessed = await Vllm().facts(get, "10.0.0.9", OWN)
    assert (facts.version, facts.hash_algorithm, facts.prefix_caching) == ("", "", None)
    assert (facts.block_tokens, facts.block_count, facts.context_tokens) == (32, None, None)
    assert facts.events == ()
    assert guessed.events == (
        EventSource("tcp://10.0.0.9:6000", "tcp://10.0.0.9:7000", "kv@"),
        EventSource("tcp://10.0.0.9:6001", "tcp://10.0.0.9:7001", "kv@"),
    )


async def test_prefix_caching_off_and_engines_that_differ() -> None:
    off = vllm_page(config='block_size="16",enable_prefix_caching="False",num_gpu_blocks="{blocks}"')
    differ = vllm_page(2).replace('block_size="16"', 'block_size="64"', 1)
    async with served({**VLLM, "/metrics": off}) as (_, get):
        assert (await Vllm().facts(get, "h", OFF)).prefix_caching is False
    async with served({**VLLM, "/metrics": differ}) as (_, get):
        assert (await Vllm().facts(get, "h", OFF)).block_tokens is None


@pytest.mark.parametrize(
    ("listed", "events"),
    [
        ([], ()),
        (
            [
                {
                    **VLLM_EVENTS,
                    "endpoint": "tcp://10.9.9.9:5557",
                    "replay_endpoint": "tcp://0.0.0.0:5558",
                    "topic": "",
                }
            ],
            (EventSource("tcp://10.9.9.9:5557", "tcp://h:5558", ""),),
        ),
        (
            {"1": {**VLLM_EVENTS, "endpoint": "tcp://*:5558"}, "0": VLLM_EVENTS},
            (EventSource("tcp://h:5557", "", "kv"), EventSource("tcp://h:5558", "", "kv")),
        ),
        (
            [{**VLLM_EVENTS, "endpoint": "ipc:///tmp/events"}, {**VLLM_EVENTS, "endpoint": "inproc://kv"}, 7],
            (),
        ),
        ([{**VLLM_EVENTS, "enable_kv_cache_events": False}, {**VLLM_EVENTS, "publisher": "null"}], ()),
    ],
)
async def test_event_sources_are_as_listed(listed: Any, events: tuple[EventSource, ...]) -> None:
    async with served({**VLLM, "/kv_event_sources": listed}) as (_, get):
        # What it lists counts, not what is configured for those that do not.
        assert (await Vllm().facts(get, "h", OWN)).events == events


@pytest.mark.parametrize(
    ("path", "told", "message"),
    [
        ("/metrics", 500, "/metrics answered 500"),
        ("/metrics", vllm_page().replace(" 3.0", " NaN"), "num_requests_running"),
        ("/metrics", vllm_page().replace(" 3.0", " -1"), "num_requests_running"),
        ("/metrics", vllm_page().replace(" 3.0", " 1e300"), "num_requests_running"),
        ("/metrics", vllm_page().replace(" 3.0", " 2.5"), "num_requests_running"),
        ("/metrics", vllm_page().replace(" 0.25", " 25"), "share of 0 to 1"),
        ("/metrics", "x" * (5 << 20), "more than"),
    ],
)
async def test_a_load_that_makes_no_sense_is_an_error(path: str, told: Any, message: str) -> None:
    async with served({**VLLM, path: told}) as (_, get):
        with pytest.raises(ValueError, match=message):
            await Vllm().load(get)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/version", [1]),
        ("/version", 500),
        ("/v1/models", {"data": 7}),
        ("/v1/models", 401),
        ("/v1/models", 404),
        ("/v1/models", b"{"),
        ("/kv_event_sources", 1.5),
        ("/kv_event_sources", [VLLM_EVENTS] * 300),
        ("/kv_event_sources", [{**VLLM_EVENTS, "topic": 7}]),
    ],
)
async def test_facts_that_make_no_sense_are_an_error(path: str, told: Any) -> None:
    async with served({**VLLM, path: told}) as (_, get):
        with pytest.raises(ValueError, match=path.strip("/") if path != "/kv_event_sources" else r"KV|kv"):
            await Vllm().facts(get, "h", OFF)


async def test_odd_fields_are_left_unknown() -> None:
    cards = [{"id": 7}, {"id": "x" * 300}, {"id": "m", "max_model_len": -4, "parent": 3}, {"id": "m"}]
    odd = {
        **VLLM,
        "/version": {"version": 7},
        "/v1/models": {"data": ["m", None, *cards]},
        "/metrics": vllm_page(config='block_size="sixteen",num_gpu_blocks="-1",enable_prefix_caching="yes"'),
    }
    async with served(odd) as (_, get):
        facts = await Vllm().facts(get, "h", OFF)
    assert (facts.version, facts.models, dict(facts.adapters)) == ("", ("m",), {})
    assert (facts.context_tokens, facts.block_tokens, facts.block_count) == (None, None, None)
    assert facts.prefix_caching is None


async def test_ready_follows_health() -> None:
    async with served({"/health": 503}) as (engine, get):
        assert not await Vllm().ready(get)
        engine.answers["/health"] = 500
        with pytest.raises(ValueError, match="/health answered 500"):
            await Vllm().ready(get)


async def test_a_restart_shows() -> None:
    async with served(VLLM) as (engine, get):
        adapter = Vllm()
        before = await adapter.load(get)
        engine.answers = {**VLLM, "/metrics": vllm_page(process="1.76447390001e+09")}
        after = await adapter.load(get)
        facts = await adapter.facts(get, "h", OFF)
    assert before is not None
    assert after is not None
    assert before.process != after.process == facts.process
