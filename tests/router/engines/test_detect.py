"""Which engine it is: told by the signature of models, by metrics, by what only one answers; else plain."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from router.config import EventOptions
from router.engines.detect import detect, engine_of
from tests.router.engines.scripted_engines import (
    ENGINES,
    LLAMACPP_PAGE,
    PLAIN,
    SGLANG,
    SGLANG_PAGE,
    TRTLLM,
    TRTLLM_PAGE,
    models,
    served,
    vllm_page,
)

UNSIGNED = models("somebody", {"id": "m"})


@pytest.mark.parametrize("kind", ["vllm", "sglang", "trtllm", "llamacpp"])
async def test_a_signature_is_enough(kind: str) -> None:
    async with served(ENGINES[kind]) as (engine, get):
        assert (await detect(get)).kind == kind
        assert engine.asked == ["/v1/models"]


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ({"/metrics": vllm_page()}, "vllm"),
        ({"/metrics": SGLANG_PAGE}, "sglang"),
        ({"/metrics": LLAMACPP_PAGE}, "llamacpp"),
        ({"/prometheus/metrics": TRTLLM_PAGE, "/metrics": TRTLLM["/metrics"]}, "trtllm"),
        ({"/server_info": SGLANG["/server_info"]}, "sglang"),
        ({"/props": ENGINES["llamacpp"]["/props"], "/metrics": 501}, "llamacpp"),
        ({"/metrics": "http_requests_total 5\n"}, "plain"),
        ({}, "plain"),
    ],
)
async def test_without_a_signature_other_answers_tell(answers: dict[str, Any], kind: str) -> None:
    async with served({"/v1/models": UNSIGNED, **answers}) as (engine, get):
        assert (await detect(get)).kind == kind
        assert len(engine.asked) <= 5


@pytest.mark.parametrize("odd", [500, 302, b"\xff\x00", [], {}, "x" * (5 << 20), "null", {"data": [[]]}])
async def test_odd_answers_tell_nothing(odd: Any) -> None:
    paths = ["/v1/models", "/metrics", "/prometheus/metrics", "/server_info", "/props"]
    async with served(dict.fromkeys(paths, odd)) as (_, get):
        assert (await detect(get)).kind == "plain"


async def test_models_signed_by_several_tell_nothing() -> None:
    mixed = {"data": [{"id": "a", "owned_by": "vllm"}, {"id": "b", "owned_by": "sglang"}]}
    async with served({"/v1/models": mixed}) as (_, get):
        assert (await detect(get)).kind == "plain"


async def test_a_server_that_is_not_there_is_not_plain() -> None:
    async with served({}) as (_, get):
        pass
    with pytest.raises((aiohttp.ClientError, RuntimeError)):
        await detect(get)


def test_each_replica_has_an_adapter_of_its_own() -> None:
    assert engine_of("sglang") is not engine_of("sglang")
    for kind in ENGINES:
        assert engine_of(kind).kind == kind
    with pytest.raises(ValueError, match="no adapter for engine 'auto'"):
        engine_of("auto")


async def test_a_plain_server_tells_its_models_and_no_load() -> None:
    async with served(PLAIN) as (engine, get):
        plain = await detect(get)
        # It has no /health.
        assert await plain.ready(get)
        facts = await plain.facts(get, "h", EventOptions(source="replica"))
        asked = len(engine.asked)
        assert await plain.load(get) is None
        assert len(engine.asked) == asked
    assert (facts.engine, facts.models, facts.context_tokens, facts.events) == ("plain", ("m",), 4096, ())
