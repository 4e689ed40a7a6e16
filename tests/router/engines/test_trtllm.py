"""TensorRT-LLM: its Prometheus page, wherever it is, and never the JSON that reading takes away."""

from __future__ import annotations

import pytest

from router.config import EventOptions
from router.engines.engine import EngineLoad, EventSource
from router.engines.trtllm import Trtllm
from tests.router.engines.scripted_engines import TRTLLM, TRTLLM_PAGE, served

OFF = EventOptions()
LOAD = EngineLoad(4, 6, 0.62, None, 90_000, 60_000, "1760000000.0")


async def test_all_that_it_tells() -> None:
    async with served(TRTLLM) as (engine, get):
        adapter = Trtllm()
        assert await adapter.ready(get)
        facts = await adapter.facts(get, "10.1.2.3", OFF)
        asked = len(engine.asked)
        assert await adapter.load(get) == LOAD
        assert engine.asked[asked:] == ["/prometheus/metrics"]
        assert engine.count("/metrics") == 0
    assert (facts.engine, facts.version, facts.models) == ("trtllm", "1.2.0", ("m",))
    assert (facts.block_tokens, facts.block_count) == (32, 4096)
    assert facts.process == "1760000000.0"
    assert (facts.hash_algorithm, facts.prefix_caching, facts.events) == ("", None, ())


async def test_events_come_from_the_configured_port() -> None:
    async with served(TRTLLM) as (_, get):
        facts = await Trtllm().facts(get, "10.1.2.3", EventOptions(source="replica"))
    assert facts.events == (EventSource("tcp://10.1.2.3:5557"),)


async def test_the_page_may_be_elsewhere() -> None:
    async with served({"/v1/models": TRTLLM["/v1/models"], "/metrics": TRTLLM_PAGE}) as (engine, get):
        adapter = Trtllm()
        assert await adapter.load(get) is None
        assert (await adapter.facts(get, "h", OFF)).block_tokens == 32
        asked = len(engine.asked)
        assert await adapter.load(get) == LOAD
        assert engine.asked[asked:] == ["/metrics"]


async def test_statistics_in_json_are_left_to_their_readers() -> None:
    without = {path: told for path, told in TRTLLM.items() if path != "/prometheus/metrics"}
    async with served(without) as (engine, get):
        adapter = Trtllm()
        for _ in range(3):
            await adapter.facts(get, "h", OFF)
            assert await adapter.load(get) is None
        assert engine.count("/metrics") == 1
        # Turned on at a restart.
        engine.answers = TRTLLM
        await adapter.facts(get, "h", OFF)
        assert await adapter.load(get) == LOAD


async def test_before_its_first_iteration_no_load_is_told() -> None:
    fresh = {**TRTLLM, "/prometheus/metrics": "# TYPE trtllm_num_requests_running gauge\n"}
    async with served(fresh) as (engine, get):
        adapter = Trtllm()
        assert (await adapter.facts(get, "h", OFF)).block_tokens is None
        assert await adapter.load(get) is None
        engine.answers = TRTLLM
        assert await adapter.load(get) == LOAD


async def test_a_load_that_makes_no_sense_is_an_error() -> None:
    async with served({**TRTLLM, "/prometheus/metrics": TRTLLM_PAGE.replace(" 6.0", " -6.0")}) as (_, get):
        with pytest.raises(ValueError, match="trtllm_num_requests_waiting"):
            await Trtllm().load(get)
