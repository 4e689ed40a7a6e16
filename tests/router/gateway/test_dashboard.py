"""The dashboard's JSON: the fleet as it is, sums that add up, why decisions fell; no prompts or addresses."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from router.observe.attribution import Cause
from tests.router.scripted import BODY, Rig, chunk, rig, stream, until

_EXPLAINS = {"observe": {"access_log": False, "explain": True}}
_FILES = ("", "page/page.css", "page/page.js", "page/icon.svg")


async def _fleet(fleet: Rig) -> dict[str, Any]:
    status, told = await fleet.get("/debug/fleet")
    assert status == 200
    assert isinstance(told, dict)
    return told


async def _when(fleet: Rig, holds: Any) -> dict[str, Any]:
    """Return what is told once it holds; it may be a second old."""
    async with asyncio.timeout(15):
        while not holds(told := await _fleet(fleet)):  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.05)
    return told


async def test_the_router_tells_how_it_is() -> None:
    async with rig(2, policy={"name": "least_work"}, observe={"access_log": False, "run": "trial"}) as fleet:
        told = await _fleet(fleet)
        router = told["router"]
        assert (router["policy"], router["run"]) == ("least_work", "trial")
        assert router["ready"] is True
        assert router["draining"] is False
        assert router["explains"] is False
        assert router["redis_up"] is None
        assert router["sources"] == [{"kind": "static", "members": 2}]
        assert router["reloads"] == {"taken": 0, "refused": 0, "current": True}
        assert router["uptime_seconds"] > 0
        assert (router["in_flight"], router["waiting"]) == (0, 0)
        assert told["states"] == {"ready": 2}
        fleet.router.metrics.reloaded(False)
        fleet.router.control.draining = True
        router = (await _fleet(fleet))["router"]
        assert (router["ready"], router["draining"]) == (False, True)
        assert router["reloads"] == {"taken": 0, "refused": 1, "current": False}


async def test_each_replica_is_told_with_its_load_and_its_counts() -> None:
    async with rig(2) as fleet:
        fleet.replica("r0").work_seconds = 30.0
        await until(lambda: fleet.router.fleet.by_name("r0").load.work_seconds == 30.0)  # type: ignore[union-attr]
        for _ in range(3):
            await fleet.post()
        told = await _fleet(fleet)
        r0, r1 = told["replicas"]
        assert (r0["name"], r1["name"]) == ("r0", "r1")
        assert r0["work_seconds"] == pytest.approx(30)
        assert 0 < r0["wait_seconds"] <= 30
        assert r1["requests"] == 3
        assert (r1["prompt_tokens"], r1["hit_tokens"], r1["unreported"]) == (120, 48, 0)
        assert sum(r1["uncached"].values()) == 120 - 48
        assert set(r1["uncached"]) <= {cause.value for cause in Cause}
        assert (r0["requests"], r0["uncached"]) == (0, {})
        assert (r1["engine"], r1["state"], r1["models"]) == ("kvring", "ready", ["m"])
        assert (r1["running"], r1["waiting"], r1["in_flight"], r1["kv_usage"]) == (0, 0, 0, 0.0)
        assert (r1["digest_age_seconds"], r1["mismatch"]) == (None, False)
        totals = told["totals"]
        assert totals["requests"] == 3
        assert totals["prompt_tokens"] - totals["hit_tokens"] == sum(totals["uncached"].values())


async def test_streams_are_counted_by_when_they_began() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request, [chunk("Salt."), chunk(None, "stop"), b"data: [DONE]\n\n"])

    async with rig(1) as fleet:
        assert (await _fleet(fleet))["totals"]["first_bytes"] == []
        fleet.replicas[0].answer = answer
        await fleet.post({**BODY, "stream": True})
        told = await _when(fleet, lambda told: told["totals"]["first_bytes"])
        bounds, counts = zip(*told["totals"]["first_bytes"], strict=True)
        assert bounds[-1] is None
        assert list(bounds[:-1]) == sorted(bounds[:-1])
        assert (list(counts), counts[-1]) == (sorted(counts), 1)


async def test_states_follow_what_becomes_of_replicas() -> None:
    async with rig(3) as fleet:
        life = (await _fleet(fleet))["replicas"][0]["life"]
        fleet.replica("r0").uid = "r0-2"
        fleet.replica("r1").draining = True
        await fleet.replica("r2").stop()
        told = await _when(fleet, lambda told: told["states"] == {"ready": 1, "draining": 1, "down": 1})
        assert [one["state"] for one in told["replicas"]] == ["ready", "draining", "down"]
        assert told["replicas"][0]["life"] != life


async def test_a_replica_that_names_blocks_otherwise_is_told() -> None:
    async with rig(2) as fleet:
        one = fleet.replica("r1")
        one.identity = replace(one.identity, block_tokens=32)
        told = await _when(fleet, lambda told: told["replicas"][1]["mismatch"])
        assert told["replicas"][0]["mismatch"] is False


async def test_neither_prompts_nor_addresses_are_told() -> None:
    async with rig(2, **_EXPLAINS) as fleet:
        await fleet.post()
        ports = [one.url.rsplit(":", 1)[1] for one in fleet.replicas]
        for path in ("/debug/fleet", "/debug/decisions"):
            async with fleet.session.get(fleet.router.address + path) as response:
                text = await response.text()
            assert "the sea" not in text
            assert "127.0.0.1" not in text
            assert not any(f":{port}" in text for port in ports)


async def test_decisions_are_told_with_why_newest_first() -> None:
    async with rig(2, **_EXPLAINS) as fleet:
        for number in range(3):
            headers = {"Content-Type": "application/json", "x-request-id": f"request-{number}"}
            await fleet.post(headers=headers)
        _, told = await fleet.get("/debug/decisions?limit=2")
        last, before = told["decisions"]
        assert (last["request_id"], before["request_id"]) == ("request-2", "request-1")
        assert {last["chosen"], last["runner_up"]} == {"r0", "r1"}
        assert last["replica"] == last["chosen"]
        assert last["why"].startswith(last["runner_up"])
        assert last["reason"]
        assert (last["status"], last["result"], last["hit_tokens"]) == (200, "ok", 16)
        assert last["expected_tokens"] > 0
        assert sum(last["misses"].values()) == 40 - 16
        _, told = await fleet.get("/debug/decisions")
        assert len(told["decisions"]) == 3


async def test_what_is_in_flight_has_no_outcome_yet() -> None:
    async with rig(1, **_EXPLAINS) as fleet:
        seen: list[Any] = []

        async def answer(request: web.Request) -> web.StreamResponse:
            _, told = await fleet.get("/debug/decisions")
            seen.extend(told["decisions"])
            return web.json_response({"error": {"message": "no"}}, status=500)

        fleet.replicas[0].answer = answer
        await fleet.post()
        assert (seen[0]["status"], seen[0]["result"], seen[0]["misses"]) == (None, None, None)
        assert seen[0]["why"] == "there was no other replica"
        _, told = await fleet.get("/debug/decisions")
        assert (told["decisions"][0]["status"], told["decisions"][0]["result"]) == (500, "replica_error")


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "", "1.5", "99999999999999999999", "²"])
async def test_an_unfit_limit_is_refused(limit: str) -> None:
    async with rig(1, **_EXPLAINS) as fleet:
        status, told = await fleet.get(f"/debug/decisions?limit={limit}")
        assert status == 400
        assert told["error"]["param"] == "limit"


async def test_decisions_are_turned_off_by_default() -> None:
    async with rig(1) as fleet:
        status, told = await fleet.get("/debug/decisions")
        assert (status, told["error"]["code"]) == (404, "turned_off")


async def test_the_page_comes_with_a_strict_policy() -> None:
    async with rig(1) as fleet:
        for path in _FILES:
            async with fleet.session.get(f"{fleet.router.address}/{path}") as response:
                assert response.status == 200, path
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Referrer-Policy"] == "no-referrer"
                policy = response.headers["Content-Security-Policy"].split("; ")
                assert {"default-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(policy)
                assert "unsafe" not in response.headers["Content-Security-Policy"]
                text = await response.text()
            # Nothing from elsewhere, nothing inline.
            for word in ("https://", "<style", " style=", "onclick", "innerHTML", "eval("):
                assert word not in text, (path, word)
        for path in ("page/nothing.js", "page/..%2fdashboard.py", "page/", "page/%00"):
            async with fleet.session.get(f"{fleet.router.address}/{path}") as response:
                assert response.status == 404, path
                assert json.loads(await response.read())["error"]["code"] is None


async def test_with_a_control_port_the_page_is_there_alone() -> None:
    async with rig(1, control={"port": 0}) as fleet:
        for path in ("/", "/page/page.js", "/debug/fleet", "/debug/decisions"):
            async with fleet.session.get(fleet.router.address + path) as response:
                assert response.status == 404, path
        async with fleet.session.get(f"{fleet.router.control_address}/") as response:
            assert response.status == 200
            assert response.content_type == "text/html"
        async with fleet.session.get(f"{fleet.router.control_address}/debug/fleet") as response:
            assert (await response.json())["states"] == {"ready": 1}


async def test_a_redis_that_is_away_is_told() -> None:
    # Nothing listens at port 1.
    async with rig(1, redis={"url": "redis://127.0.0.1:1"}, fleet={"leases": {"enabled": True}}) as fleet:
        router = (await _fleet(fleet))["router"]
        assert router["redis_up"] is False
        assert router["sources"] == [{"kind": "static", "members": 1}, {"kind": "leases", "members": None}]
