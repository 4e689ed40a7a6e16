"""Whether engines cache prefixes and say so: by flags, by what a router counted, and by trying."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from loadgen.doctor.evidence import Evidence
from tests.integration.fleets import live_fleet
from tests.loadgen.doctor.patient import (
    WARNING,
    WRONG,
    diagnose,
    engines,
    look,
    routed,
    router,
    serving,
    severities,
    verdict,
    write,
)
from tests.loadgen.scripted import stream, whole
from tests.router.engines.scripted_engines import SGLANG, VLLM, vllm_page
from tests.router.scripted import completion, rig


@pytest.mark.parametrize(("cached", "found"), [(None, [WRONG]), (16, [])])
async def test_what_a_router_counted(cached: int | None, found: list[str]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(completion(cached_tokens=cached))

    async with rig(1) as fleet:
        fleet.replicas[0].answer = answer
        for _ in range(12):
            await fleet.post()
        diagnosis = await diagnose(url=fleet.router.address)
    assert severities(verdict(diagnosis, "cached_tokens")) == found


def test_few_answers_say_nothing() -> None:
    metrics = (
        'kvring_requests_total{replica="r0",outcome="ok"} 5\nkvring_hit_unreported_total{replica="r0"} 5\n'
    )
    assert not look(Evidence(router=router(metrics=metrics)), "cached_tokens").findings


@pytest.mark.parametrize(
    ("engine", "flag"),
    [("vllm", "--enable-prompt-tokens-details"), ("sglang", "--enable-cache-report"), ("", "vLLM")],
)
def test_the_flag_is_the_engines(engine: str, flag: str) -> None:
    metrics = (
        'kvring_requests_total{replica="r0",outcome="ok"} 50\nkvring_hit_unreported_total{replica="r0"} 50\n'
    )
    found = look(Evidence(router=router(routed("r0", engine=engine), metrics=metrics)), "cached_tokens")
    assert severities(found) == [WRONG]
    assert flag in found.findings[0].mend
    assert "50 of 50" in found.findings[0].seen


@pytest.mark.parametrize(("on", "found"), [(False, [WRONG]), (True, [])])
async def test_sglang_tells_its_flag(tmp_path: Path, on: bool, found: list[str]) -> None:
    told = {**SGLANG, "/server_info": {**SGLANG["/server_info"], "enable_cache_report": on}}
    async with engines(told) as urls:
        diagnosis = await diagnose(write(tmp_path, urls))
    assert severities(verdict(diagnosis, "cached_tokens")) == found
    assert "secret" not in str(diagnosis.to_json())


@pytest.mark.parametrize(("caching", "found"), [("False", [WRONG]), ("True", [])])
async def test_vllm_tells_of_prefix_caching(tmp_path: Path, caching: str, found: list[str]) -> None:
    page = vllm_page(config=f'block_size="16",enable_prefix_caching="{caching}",num_gpu_blocks="1"')
    async with engines({**VLLM, "/metrics": page}) as urls:
        seen = verdict(await diagnose(write(tmp_path, urls)), "prefix_caching")
    assert severities(seen) == found
    assert all("--enable-prefix-caching" in finding.mend for finding in seen.findings)


@pytest.mark.parametrize(("radix_off", "found"), [(True, [WRONG]), (False, [])])
async def test_sglang_tells_of_prefix_caching(tmp_path: Path, radix_off: bool, found: list[str]) -> None:
    told = {**SGLANG, "/server_info": {**SGLANG["/server_info"], "disable_radix_cache": radix_off}}
    async with engines(told) as urls:
        seen = verdict(await diagnose(write(tmp_path, urls)), "prefix_caching")
    assert severities(seen) == found


@pytest.mark.parametrize("on", [True, False])
async def test_a_prompt_sent_twice(tmp_path: Path, on: bool) -> None:
    async with live_fleet(2, replica={"enable_prefix_caching": on}) as fleet:
        diagnosis = await diagnose(url=fleet.routers[0].address, probe=True)
        urls = {replica.options.name: replica.url for replica in fleet.replicas}
        told = await diagnose(write(tmp_path, urls), probe=True)
    for seen in (verdict(diagnosis, "prefix_caching"), verdict(told, "prefix_caching")):
        assert seen.looked
        assert severities(seen) == ([] if on else [WRONG])
    assert not verdict(diagnosis, "cached_tokens").findings


async def test_a_trial_whose_answers_do_not_tell() -> None:
    asked: list[bytes] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(await request.read())
        return await stream(request, whole("one", " two", cached=None))

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m"}]})

    async with serving(web.post("/v1/chat/completions", answer), web.get("/v1/models", models)) as url:
        diagnosis = await diagnose(api_url=url, probe=True)
    assert severities(verdict(diagnosis, "cached_tokens")) == [WRONG]
    assert len(asked) == 2
    assert asked[0] == asked[1]


async def test_a_trial_that_wanders() -> None:
    names = iter(("r0", "r1"))

    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request, whole("one", " two", cached=0), replica=next(names))

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m"}]})

    async with serving(web.post("/v1/chat/completions", answer), web.get("/v1/models", models)) as url:
        diagnosis = await diagnose(api_url=url, probe=True)
    assert severities(verdict(diagnosis, "prefix_caching")) == [WARNING]
