"""Whether what caches hold is known: digests that are there and fresh, KV events that arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadgen.doctor.evidence import Evidence
from tests.integration.fleets import live_fleet
from tests.loadgen.doctor.patient import (
    NOTE,
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
from tests.router.engines.scripted_engines import VLLM, VLLM_EVENTS
from tests.router.scripted import rig
from tests.tiny_tokenizer import write_tiny_tokenizer


async def test_digests_that_are_fresh(tmp_path: Path) -> None:
    async with live_fleet(2) as fleet:
        await fleet.chat([{"role": "user", "content": "The sea. " * 40}])
        await fleet.fresh_digests()
        urls = {replica.options.name: replica.url for replica in fleet.replicas}
        diagnosis = await diagnose(write(tmp_path, urls), fleet.routers[0].address)
    found = verdict(diagnosis, "digests")
    assert found.looked
    assert not found.findings
    assert diagnosis.well


async def test_digests_that_are_not_served(tmp_path: Path) -> None:
    async with rig(1) as fleet:
        found = verdict(await diagnose(write(tmp_path, {"r0": fleet.replicas[0].url})), "digests")
    assert severities(found) == [WRONG]
    assert "answers 404" in found.findings[0].seen


@pytest.mark.parametrize(
    ("age", "uptime", "found"),
    [(1.0, 3600.0, []), (None, 3600.0, [WRONG]), (None, 5.0, []), (90.0, 3600.0, [WRONG])],
)
def test_digests_at_the_router(age: float | None, uptime: float, found: list[str]) -> None:
    seen = router(routed("r0"), routed("r1", digest_age_seconds=age), uptime_seconds=uptime)
    told = look(Evidence(router=seen), "digests")
    assert severities(told) == found
    assert all("r1" in finding.title for finding in told.findings)


def test_no_digest_is_expected_of_engines_without_events() -> None:
    plain = routed("r0", engine="vllm", digest_age_seconds=None)
    assert not look(Evidence(router=router(plain)), "digests").looked
    # Nor of one that names blocks otherwise, or is down: these are told elsewhere.
    others = (
        routed("r1", mismatch=True, digest_age_seconds=None),
        routed("r2", "down", digest_age_seconds=None),
    )
    assert not look(Evidence(router=router(routed("r0"), *others)), "digests").findings


def known(tmp_path: Path) -> dict[str, Any]:
    return {"m": {"tokenizer_directory": write_tiny_tokenizer(tmp_path / "m")}}


async def test_sidecars(tmp_path: Path) -> None:
    """A sidecar that is not there, one with another chain, one that is not ready, and one as it should be."""
    bodies: dict[str, Any] = {}

    async def digest(request: web.Request) -> web.Response:
        if "digest" not in bodies:
            return web.json_response({"error": {"message": "the engine loads"}}, status=503)
        return web.json_response(bodies["digest"])

    async def examine(port: int) -> Any:
        events = {"source": "sidecar", "sidecar_port": port}
        async with engines(VLLM) as urls:
            config = write(tmp_path, urls, models=known(tmp_path), fleet={"events": events})
            return verdict(await diagnose(config), "digests")

    absent = await examine(9)
    assert severities(absent) == [WRONG]
    assert "refused" in absent.findings[0].seen
    assert "kvring sidecar" in absent.findings[0].mend
    async with serving(web.get("/digest", digest)) as url, live_fleet(1, tmp_path / "m") as fleet:
        port = int(url.rpartition(":")[2])
        loading = await examine(port)
        assert severities(loading) == [WRONG]
        assert "the engine loads" in loading.findings[0].seen
        async with fleet.session.get(f"{fleet.replicas[0].url}/digest") as response:
            bodies["digest"] = await response.json()
        assert not (await examine(port)).findings
        bodies["digest"] = {**bodies["digest"], "identity": "another"}
        assert severities(await examine(port)) == [WRONG]
        bodies["digest"] = {"nothing": 1}
        assert "no digest" in (await examine(port)).findings[0].seen


SERVED = 'kvring_requests_total{replica="e0",outcome="ok"} 50\n'
HEARD = 'kvring_event_feed_connected{replica="e0"} 1\nkvring_event_batches_total{replica="e0"} 7\n'


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        (HEARD + SERVED, []),
        (HEARD.replace("} 1\n", "} 0\n"), [WRONG]),
        (HEARD.replace("} 7\n", "} 0\n") + SERVED, [WRONG]),
        (HEARD.replace("} 7\n", "} 0\n"), []),
        (HEARD + SERVED + 'kvring_event_gaps_total{replica="e0"} 3\n', [WARNING]),
        (HEARD + SERVED + 'kvring_index_evicted_blocks_total{replica="e0"} 3\n', [NOTE]),
    ],
)
def test_events_at_the_router(metrics: str, found: list[str]) -> None:
    assert severities(look(Evidence(router=router(metrics=metrics)), "events")) == found


async def test_events_where_nobody_publishes(tmp_path: Path) -> None:
    told = {**VLLM, "/kv_event_sources": [{**VLLM_EVENTS, "endpoint": "tcp://*:9"}]}
    fleet = {"events": {"source": "replica"}}
    async with engines(told) as urls:
        found = verdict(await diagnose(write(tmp_path, urls, fleet=fleet, models=known(tmp_path))), "events")
        assert severities(found) == [WRONG]
        assert "tcp://127.0.0.1:9: the connection is refused" in found.findings[0].seen
        assert "--kv-events-config" in found.findings[0].mend
        # Without a tokenizer they could not be used either.
        found = verdict(await diagnose(write(tmp_path, urls, fleet=fleet)), "events")
        assert severities(found) == [WRONG, WRONG]


async def test_events_that_are_turned_off_where_they_are_wanted(tmp_path: Path) -> None:
    async with engines({**VLLM, "/kv_event_sources": []}) as urls:
        path = write(tmp_path, urls, fleet={"events": {"source": "replica"}}, models=known(tmp_path))
        found = verdict(await diagnose(path), "events")
    assert severities(found) == [WRONG]
    assert "it says that it publishes none" in found.findings[0].seen


async def test_events_that_are_published(tmp_path: Path) -> None:
    # Anything that listens will do: events themselves are the router's affair.
    async with serving() as listening:
        endpoint = f"tcp://*:{listening.rpartition(':')[2]}"
        told = {**VLLM, "/kv_event_sources": [{**VLLM_EVENTS, "endpoint": endpoint}]}
        async with engines(told) as urls:
            models = known(tmp_path)
            heard = await diagnose(
                write(tmp_path, urls, models=models, fleet={"events": {"source": "replica"}})
            )
            unheard = await diagnose(write(tmp_path, urls, models=models))
    assert verdict(heard, "events").looked
    assert not verdict(heard, "events").findings
    assert severities(verdict(unheard, "events")) == [NOTE]


async def test_no_events_are_expected_where_they_are_off(tmp_path: Path) -> None:
    async with engines({**VLLM, "/kv_event_sources": []}) as urls:
        assert not verdict(await diagnose(write(tmp_path, urls)), "events").looked
