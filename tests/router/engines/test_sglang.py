"""SGLang: load of all ranks from /v1/loads or /metrics, facts and event sources from /server_info."""

from __future__ import annotations

from typing import Any

import pytest

from router.config import EventOptions
from router.engines.engine import EngineLoad, EventSource
from router.engines.sglang import Sglang
from tests.router.engines.scripted_engines import SGLANG, SGLANG_PAGE, SGLANG_RANK, served

OFF = EventOptions()
OWN = EventOptions(source="replica", port=6000)
LOADS = "/v1/loads?include=core"


def info(**fields: Any) -> dict[str, Any]:
    return {**SGLANG, "/server_info": {**SGLANG["/server_info"], **fields}}


def kv_events(**fields: Any) -> dict[str, Any]:
    return info(kv_events={**SGLANG["/server_info"]["kv_events"], **fields})


async def test_a_new_version_tells_all() -> None:
    async with served(SGLANG) as (engine, get):
        adapter = Sglang()
        assert await adapter.ready(get)
        facts = await adapter.facts(get, "10.1.2.3", OFF)
        asked = len(engine.asked)
        load = await adapter.load(get)
        assert engine.asked[asked:] == [LOADS]
    assert (facts.engine, facts.version, facts.process) == ("sglang", "0.5.23", "seed-731202551")
    assert (facts.models, facts.adapters) == (("m", "poet"), {"poet": "m"})
    assert facts.context_tokens == 40_960
    assert facts.block_tokens == 64
    assert facts.block_count == 2 * (20_000 // 64)
    assert facts.hash_algorithm == ""
    assert facts.prefix_caching is True
    assert facts.events == (
        EventSource("tcp://10.1.2.3:5557", "", "kv"),
        EventSource("tcp://10.1.2.3:5558", "", "kv"),
    )
    assert load is not None
    assert (load.running, load.waiting, load.waiting_tokens) == (6, 4, 6000)
    assert load.kv_usage == pytest.approx(0.3)
    assert (load.query_tokens, load.hit_tokens, load.process) == (None, None, "")


async def test_without_loads_the_page_is_read_and_asked_for_at_once_from_then_on() -> None:
    old = {path: told for path, told in SGLANG.items() if path != LOADS} | {"/metrics": SGLANG_PAGE}
    async with served(old) as (engine, get):
        adapter = Sglang()
        expected = EngineLoad(6, 2, 0.3, None, 8e6, 6e6)
        assert await adapter.load(get) == expected
        assert await adapter.load(get) == expected
        assert (engine.count(LOADS), engine.count("/metrics")) == (1, 2)
        # A server of a newer version may have taken its place.
        await adapter.facts(get, "h", OFF)
        await adapter.load(get)
        assert engine.count(LOADS) == 2


async def test_without_metrics_no_load_is_told() -> None:
    async with served({"/v1/models": SGLANG["/v1/models"]}) as (engine, get):
        assert await Sglang().load(get) is None
        engine.answers["/metrics"] = "sglang:gen_throughput 1.0\n"
        assert await Sglang().load(get) is None


async def test_an_old_version_tells_less() -> None:
    old = {"/get_server_info": {"version": "0.4.0", "page_size": 1}, "/v1/models": SGLANG["/v1/models"]}
    async with served(old) as (_, get):
        facts = await Sglang().facts(get, "h", OFF)
        guessed = await Sglang().facts(get, "h", OWN)
    assert (facts.version, facts.block_tokens, facts.block_count) == ("0.4.0", 1, None)
    assert (facts.process, facts.prefix_caching, facts.events) == ("", None, ())
    assert guessed.events == (EventSource("tcp://h:6000"),)


async def test_waiting_tokens_of_only_some_ranks_are_unknown() -> None:
    partly = {key: told for key, told in SGLANG_RANK.items() if key != "num_waiting_uncached_tokens"}
    async with served({LOADS: {"loads": [SGLANG_RANK, partly]}}) as (_, get):
        load = await Sglang().load(get)
    assert load is not None
    assert (load.waiting, load.waiting_tokens) == (4, None)


@pytest.mark.parametrize("host", ["", "*", "0.0.0.0", "::", "[::]"])
async def test_wildcards_are_the_replica_itself(host: str) -> None:
    async with served(kv_events(endpoint_host=host, dp_size=1, replay_endpoint_port_base=6557)) as (_, get):
        facts = await Sglang().facts(get, "fd00::7", OFF)
    assert facts.events == (EventSource("tcp://[fd00::7]:5557", "tcp://[fd00::7]:6557", "kv"),)


async def test_an_address_of_its_own_is_kept_and_other_publishers_are_none() -> None:
    async with served(kv_events(endpoint_host="10.7.7.7", dp_size=1)) as (_, get):
        assert (await Sglang().facts(get, "h", OWN)).events[0].endpoint == "tcp://10.7.7.7:5557"
    async with served(kv_events(publisher="null")) as (_, get):
        assert (await Sglang().facts(get, "h", OWN)).events == ()
    async with served(info(kv_events=None)) as (_, get):
        assert len((await Sglang().facts(get, "h", OWN)).events) == 2


@pytest.mark.parametrize(
    "loads",
    [
        None,
        [],
        [7],
        [{}],
        [{**SGLANG_RANK, "num_running_reqs": -1}],
        [{**SGLANG_RANK, "num_waiting_reqs": "2"}],
        [{**SGLANG_RANK, "num_waiting_reqs": True}],
        [{**SGLANG_RANK, "num_waiting_uncached_tokens": 0.5}],
        [{**SGLANG_RANK, "token_usage": 45}],
        [{**SGLANG_RANK, "num_running_reqs": 10**30}],
        [SGLANG_RANK] * 300,
    ],
)
async def test_a_load_that_makes_no_sense_is_an_error(loads: Any) -> None:
    async with served({LOADS: {"loads": loads}}) as (_, get):
        with pytest.raises(ValueError, match=r"load|num_|token_usage"):
            await Sglang().load(get)


@pytest.mark.parametrize(
    "fields",
    [
        {"endpoint_port_base": 0},
        {"endpoint_port_base": "5557"},
        {"endpoint_port_base": 65_535},
        {"dp_size": 0},
        {"dp_size": 1000},
        {"topic": [1]},
        {"endpoint_host": None},
    ],
)
async def test_event_sources_that_make_no_sense_are_an_error(fields: dict[str, Any]) -> None:
    async with served(kv_events(**fields)) as (_, get):
        with pytest.raises(ValueError, match=r"KV events|endpoint_port|dp_size"):
            await Sglang().facts(get, "h", OFF)


async def test_a_restart_shows_by_its_seed() -> None:
    async with served(SGLANG) as (engine, get):
        adapter = Sglang()
        before = (await adapter.facts(get, "h", OFF)).process
        engine.answers = info(random_seed=5)
        assert (await adapter.facts(get, "h", OFF)).process not in ("", before)


async def test_its_health_computes() -> None:
    assert Sglang.health_computes
    async with served({"/health": 503}) as (_, get):
        assert not await Sglang().ready(get)
