"""Who is in the fleet: sources, who answers, and which models are served."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from loadgen.doctor.ask_replica import ask_replica
from loadgen.doctor.evidence import Evidence
from loadgen.doctor.examine import MOST_REPLICAS
from loadgen.doctor.reach import Reach
from router.config import RouterConfig
from router.fleet.members import Member
from tests.loadgen.doctor.patient import (
    NOTE,
    WARNING,
    WRONG,
    diagnose,
    engines,
    look,
    routed,
    router,
    severities,
    verdict,
    write,
)
from tests.router.engines.scripted_engines import VLLM
from tests.router.fleet.sources.name_server import name_server
from tests.router.scripted import ScriptedReplica, rig
from tests.tiny_tokenizer import write_tiny_tokenizer

NOBODY = "http://127.0.0.1:9"


async def test_a_fleet_that_answers(tmp_path: Path) -> None:
    async with rig(2) as fleet:
        urls = {replica.name: replica.url for replica in fleet.replicas}
        diagnosis = await diagnose(write(tmp_path, urls), fleet.router.address)
    for name in ("members", "replicas", "models", "ring_names", "router"):
        found = verdict(diagnosis, name)
        assert found.looked
        # A rig has options of its own beside those of the file.
        assert [one for one in severities(found) if one is not NOTE] == []


async def test_replicas_that_do_not_answer(tmp_path: Path) -> None:
    async with rig(2) as fleet:
        urls = {replica.name: replica.url for replica in fleet.replicas}
        fleet.replica("r1").state_status = 503
        diagnosis = await diagnose(write(tmp_path, {**urls, "r2": NOBODY}))
    found = verdict(diagnosis, "replicas").findings
    assert [(finding.severity, finding.title) for finding in found] == [
        (WRONG, "1 replica does not answer: r1"),
        (WRONG, "1 replica does not answer: r2"),
    ]
    assert "still loading" in found[0].seen
    assert "refused" in found[1].seen


def test_states_that_a_router_tells() -> None:
    seen = Evidence(
        router=router(
            routed("r0"),
            routed("r1", "down"),
            routed("r2", "suspect"),
            routed("r3", "joining"),
            routed("r4", "draining"),
        )
    )
    found = look(seen, "replicas")
    assert severities(found) == [WRONG, WRONG, WARNING, NOTE]
    assert ["r1" in found.findings[0].title, "r3" in found.findings[2].title] == [True, True]
    assert not look(Evidence(router=router(routed("r0"), routed("r1", "warming"))), "replicas").findings


async def test_one_that_only_the_router_cannot_reach(tmp_path: Path) -> None:
    async with rig(1) as fleet:
        diagnosis = await diagnose(write(tmp_path, {"r0": fleet.replicas[0].url}))
        told = verdict(diagnosis, "replicas")
        assert not told.findings
        # As seen by a router to which it is down.
        async with Reach() as reach:
            seen = await ask_replica(reach, Member(fleet.replicas[0].url, "r0"), RouterConfig.load())
        evidence = replace(Evidence(router=router(routed("r0", "down"))), replicas=(seen,))
    found = look(evidence, "replicas")
    assert severities(found) == [WRONG]
    assert "answers from here" in found.findings[0].mend


async def test_an_empty_fleet(tmp_path: Path) -> None:
    assert severities(verdict(await diagnose(write(tmp_path)), "members")) == [WRONG]


@pytest.mark.parametrize(
    ("fleet", "kind"),
    [
        ({"dns": {"host": "nobody.invalid", "nameservers": ["127.0.0.1:9"]}}, "dns"),
        ({"kubernetes": {"service": "kvring", "namespace": "x", "url": NOBODY}}, "kubernetes"),
    ],
)
async def test_sources_that_tell_nothing(
    tmp_path: Path, fleet: dict[str, object], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.doctor.members._LIST_SECONDS", 0.3)
    found = verdict(await diagnose(write(tmp_path, fleet=fleet)), "members")
    assert severities(found) == [WRONG]
    assert kind in found.findings[0].title


def test_a_source_that_the_router_hears_nothing_of() -> None:
    metrics = 'kvring_discovery_up{source="dns"} 0\nkvring_discovery_age_seconds{source="dns"} 93\n'
    found = look(Evidence(router=router(routed("r0"), metrics=metrics)), "members")
    assert severities(found) == [WRONG]
    assert "93 s" in found.findings[0].seen
    answered = metrics.replace("} 0", "} 1")
    assert not look(Evidence(router=router(routed("r0"), metrics=answered)), "members").findings


async def test_a_router_that_is_not_there() -> None:
    diagnosis = await diagnose(url=NOBODY)
    found = verdict(diagnosis, "router")
    assert severities(found) == [WRONG]
    assert "refused" in found.findings[0].seen
    assert not diagnosis.well


async def test_a_router_without_a_replica(tmp_path: Path) -> None:
    async with rig(1) as fleet:
        await fleet.replicas[0].stop()
        await fleet.ready(0)
        diagnosis = await diagnose(url=fleet.router.address)
    found = verdict(diagnosis, "router")
    assert severities(found) == [WRONG]
    assert "none of 1 replicas is usable" in found.findings[0].seen
    assert severities(verdict(diagnosis, "replicas")) == [WRONG]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"options_current": False}, [WRONG]),
        ({"draining": True}, [NOTE]),
        ({"metrics": 'kvring_model_requests_total{model="m",outcome="broken_off"} 30\n' * 1}, [WRONG]),
        (
            {
                "metrics": 'kvring_model_requests_total{model="m",outcome="broken_off"} 1\n'
                'kvring_model_requests_total{model="m",outcome="ok"} 99\n'
            },
            [],
        ),
    ],
)
def test_what_a_router_says_of_itself(fields: dict[str, object], found: list[str]) -> None:
    assert severities(look(Evidence(router=router(**fields)), "router")) == found  # type: ignore[arg-type]


async def test_options_other_than_the_file(tmp_path: Path) -> None:
    async with rig(1) as fleet:
        config = write(tmp_path, {"r0": fleet.replicas[0].url}, policy={"name": "round_robin"})
        found = verdict(await diagnose(config, fleet.router.address), "router")
    assert severities(found) == [WARNING]
    assert "affinity there, round_robin in the file" in found.findings[0].seen


async def test_models_that_nobody_serves(tmp_path: Path) -> None:
    directory = write_tiny_tokenizer(tmp_path / "m")
    async with engines(VLLM) as urls:
        known = {"tokenizer_directory": directory}
        found = verdict(await diagnose(write(tmp_path, urls, models={"m": known})), "models")
        assert found.looked
        assert not found.findings
        found = verdict(await diagnose(write(tmp_path, urls, models={"m": known, "poets": known})), "models")
        assert severities(found) == [WRONG]
        assert "did you mean poet?" in found.findings[0].mend


async def test_models_without_a_tokenizer(tmp_path: Path) -> None:
    async with engines(VLLM) as urls:
        assert severities(verdict(await diagnose(write(tmp_path, urls)), "models")) == [WARNING]
    by_bytes = 'kvring_prompts_total{tier="bytes"} 50\nkvring_prompts_total{tier="tokens"} 50\n'
    assert severities(look(Evidence(router=router(routed("r0"), metrics=by_bytes)), "models")) == [NOTE]
    by_tokens = by_bytes.replace("} 50\n", "} 0\n", 1)
    assert not look(Evidence(router=router(routed("r0"), metrics=by_tokens)), "models").findings


async def test_two_replicas_of_one_name_and_one_under_two(tmp_path: Path) -> None:
    first, second = ScriptedReplica("same"), ScriptedReplica("same")
    second.uid = "same-2"
    await first.start()
    await second.start()
    try:
        listed = [("a", first.url), ("b", first.url.replace("127.0.0.1", "localhost"))]
        twice = verdict(await diagnose(write(tmp_path, listed)), "ring_names")
        assert severities(twice) == [WRONG]
        assert "listed twice" in twice.findings[0].title
        listed = [("a", first.url), ("b", first.url)]
        assert severities(verdict(await diagnose(write(tmp_path, listed)), "ring_names")) == [WRONG]
        listed = [("a", first.url), ("b", second.url)]
        assert not verdict(await diagnose(write(tmp_path, listed)), "ring_names").findings
        # Without names of the configuration's they go by their own.
        async with Reach() as reach:
            seen = [await ask_replica(reach, Member(one.url), RouterConfig.load()) for one in (first, second)]
        found = look(Evidence(replicas=tuple(seen)), "ring_names")
        assert severities(found) == [WRONG]
        assert "2 replicas are called same" in found.findings[0].title
    finally:
        await first.stop()
        await second.stop()


async def test_large_fleets_are_asked_in_part_and_a_few_at_a_time(tmp_path: Path) -> None:
    asked: set[str] = set()
    at_once = [0, 0]

    async def busy(request: web.Request) -> web.Response:
        asked.add(request.host)
        at_once[0] += 1
        at_once[1] = max(at_once)
        await asyncio.sleep(0.005)
        at_once[0] -= 1
        return web.json_response({}, status=503)

    application = web.Application()
    application.router.add_get("/{rest:.*}", busy)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    async with AsyncExitStack() as stack:
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        for index in range(MOST_REPLICAS + 6):
            await web.TCPSite(runner, f"127.0.0.{index + 1}", 0).start()
        urls = {f"r{at}": f"http://{host}:{port}" for at, (host, port) in enumerate(runner.addresses)}
        diagnosis = await diagnose(write(tmp_path, urls))
    assert len(asked) == MOST_REPLICAS
    assert 1 < at_once[1] <= 16
    assert "6 more were not asked" in verdict(diagnosis, "members").seen
    # They fail alike, and are told of together.
    assert len(verdict(diagnosis, "replicas").findings) == 1


async def test_members_by_dns(tmp_path: Path) -> None:
    replica = ScriptedReplica("found")
    await replica.start()
    try:
        async with name_server() as server:
            server.records["fleet.test.", "A"] = (0, ["127.0.0.1"])
            dns = {
                "host": "fleet.test.",
                "port": int(replica.url.rpartition(":")[2]),
                "nameservers": [server.address],
            }
            diagnosis = await diagnose(write(tmp_path, fleet={"dns": dns}))
    finally:
        await replica.stop()
    assert not verdict(diagnosis, "members").findings
    assert verdict(diagnosis, "replicas").seen == "1 of 1 replica asked"
    assert not verdict(diagnosis, "replicas").findings
