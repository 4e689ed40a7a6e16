"""The llama.cpp server, with and without --metrics, loading, restarted; answers as of build b1-7e4c0a9."""

from __future__ import annotations

from typing import Any

import pytest

from router.config import EventOptions
from router.engines.engine import EngineLoad
from router.engines.llamacpp import LlamaCpp
from tests.router.engines.scripted_engines import LLAMACPP, served

OWN = EventOptions(source="replica")


async def test_all_that_it_tells() -> None:
    async with served(LLAMACPP) as (engine, get):
        adapter = LlamaCpp()
        assert await adapter.ready(get)
        facts = await adapter.facts(get, "h", OWN)
        asked = len(engine.asked)
        assert await adapter.load(get) == EngineLoad(2, 3, 0.0, None, 620 + 616, 616)
        assert engine.asked[asked:] == ["/metrics"]
    assert (facts.engine, facts.version) == ("llamacpp", "b1-7e4c0a9")
    assert facts.models == ("/models/m.gguf", "m")
    assert facts.context_tokens == 1024
    assert (facts.block_tokens, facts.block_count, facts.hash_algorithm) == (None, None, "")
    # It publishes none, whatever is configured.
    assert facts.events == ()


async def test_older_builds_count_no_cached_tokens_and_tell_kv_use() -> None:
    page = "llamacpp:prompt_tokens_total 9\nllamacpp:kv_cache_usage_ratio 0.5\n"
    page += "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"
    async with served({**LLAMACPP, "/metrics": page}) as (_, get):
        assert await LlamaCpp().load(get) == EngineLoad(1, 0, 0.5, None, None, None)


async def test_without_metrics_the_slots_tell_who_runs() -> None:
    async with served({**LLAMACPP, "/metrics": 501}) as (engine, get):
        adapter = LlamaCpp()
        assert await adapter.load(get) == EngineLoad(1, 0, 0.25)
        assert await adapter.load(get) == EngineLoad(1, 0, 0.25)
        assert (engine.count("/metrics"), engine.count("/slots")) == (1, 2)
        # Restarted with --metrics.
        engine.answers = LLAMACPP
        await adapter.facts(get, "h", OWN)
        load = await adapter.load(get)
        assert load is not None
        assert load.waiting == 3


async def test_without_slots_either_no_load_is_told() -> None:
    async with served({**LLAMACPP, "/metrics": 501, "/slots": 501}) as (_, get):
        assert await LlamaCpp().load(get) is None


async def test_it_is_not_ready_while_it_loads() -> None:
    async with served(dict.fromkeys(LLAMACPP, 503)) as (_, get):
        assert not await LlamaCpp().ready(get)
        with pytest.raises(ValueError, match="answered 503"):
            await LlamaCpp().facts(get, "h", OWN)


async def test_a_restart_shows_by_its_marker() -> None:
    async with served(LLAMACPP) as (engine, get):
        adapter = LlamaCpp()
        before = (await adapter.facts(get, "h", OWN)).process
        again = (await adapter.facts(get, "h", OWN)).process
        props = {**LLAMACPP["/props"], "media_marker": "<__media_44rnnXcytzrEoLJclvteEVuLF4LZzuIB__>"}
        engine.answers = {**LLAMACPP, "/props": props}
        after = (await adapter.facts(get, "h", OWN)).process
    assert before == again != ""
    assert after not in ("", before)


@pytest.mark.parametrize(
    "slots",
    [1.5, [], [7], [{}], [{"is_processing": 1}], [{"is_processing": False}] * 5000],
)
async def test_slots_that_make_no_sense_are_an_error(slots: Any) -> None:
    async with served({"/slots": slots}) as (_, get):
        with pytest.raises(ValueError, match="/slots"):
            await LlamaCpp().load(get)


async def test_odd_sizes_of_slots_are_left_unknown() -> None:
    slots = [
        {"is_processing": True, "n_ctx": -1, "n_prompt_tokens": 5},
        {"is_processing": True, "n_ctx": 100, "n_prompt_tokens": 10**40},
        {"is_processing": True, "n_ctx": 100, "n_prompt_tokens": 500},
    ]
    async with served({"/slots": slots}) as (_, get):
        assert await LlamaCpp().load(get) == EngineLoad(3, 0, 0.5)
