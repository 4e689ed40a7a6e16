"""What becomes of requests behind a real Envoy when replicas, or the picker, are gone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.router.picker.envoy_config import fail_closed
from tests.router.picker.rig import BLIND, PickerRig, chat, envoy_rig
from tests.router.scripted import ScriptedReplica, chunk


async def home_of(rig: PickerRig, front: Any, topic: str) -> ScriptedReplica:
    """Begin a conversation; return the replica that it is at home on."""
    _, _, response = await rig.post(front, chat(topic))
    return next(one for one in rig.replicas if one.name == response.headers["x-kvring-replica"])


async def test_the_list_goes_past_a_dead_replica_and_the_policy_learns_where_it_ended(tmp_path: Path) -> None:
    patient = BLIND | {"failures_to_suspect": 100}
    # Goes by what it was told of where prefixes are, and by nothing else.
    policy = {"name": "prefixaware"}
    async with envoy_rig(tmp_path, fleet=patient, policy=policy) as (rig, front):
        await rig.replicas[0].stop()
        passed_over = 0.0
        for number in range(20):
            status, _, response = await rig.post(front, chat(f"theme {number}"))
            assert status == 200
            assert response.headers["x-kvring-replica"] in ("r1", "r2")
            if passed_over := rig.metric("kvring_failovers_total", replica="r0", reason="passed_over"):
                break
        assert passed_over == 1
        await rig.idle()
        # Nobody told that the first is dead; but the prefix is elsewhere now.
        _, _, again = await rig.post(front, chat(f"theme {number}", 2))
        assert again.headers["x-kvring-replica"] == response.headers["x-kvring-replica"]
        assert int(again.headers["x-kvring-expected-tokens"]) > 100
        assert rig.metric("kvring_failovers_total") == 1
        await rig.idle()
        assert rig.in_flight() == 0


async def test_replicas_passed_over_again_and_again_are_left_out(tmp_path: Path) -> None:
    async with envoy_rig(tmp_path, fleet=BLIND | {"failures_to_suspect": 2}) as (rig, front):
        home = await home_of(rig, front, "the sea")
        await home.stop()
        for turn in range(4):
            # Each a request of its own, so that only health can tell where not to go.
            status, _, _ = await rig.post(front, chat(f"matter {turn}"))
            assert status == 200
        statuses = [await rig.post(front, chat(f"theme {number}")) for number in range(12)]
        assert {status for status, _, _ in statuses} == {200}
        assert rig.metric("kvring_failovers_total", replica=home.name) == 2


async def test_a_replica_that_turns_away_is_passed_over(tmp_path: Path) -> None:
    async with envoy_rig(tmp_path, fleet=BLIND | {"failures_to_suspect": 100}) as (rig, front):
        home = await home_of(rig, front, "the sea")

        async def full(request: web.Request) -> web.Response:
            return web.json_response({}, status=503)

        home.answer = full
        status, body, response = await rig.post(front, chat("the sea", 2))
        assert status == 200
        assert b"Salt water" in body
        assert response.headers["x-kvring-replica"] != home.name


async def test_an_endpoint_that_the_gateway_does_not_know_is_no_harm(tmp_path: Path) -> None:
    def forget_first(config: dict[str, Any]) -> None:
        cluster = next(one for one in config["static_resources"]["clusters"] if one["name"] == "replicas")
        del cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]

    async with envoy_rig(tmp_path, forget_first, fleet=BLIND | {"failures_to_suspect": 100}) as (rig, front):
        for number in range(6):
            status, _, response = await rig.post(front, chat(f"theme {number}"))
            assert status == 200
            assert response.headers["x-kvring-replica"] != "r0"
        assert rig.served()[0] == 0
        assert rig.metric("kvring_failovers_total", replica="r0") > 0


async def test_where_the_gateway_goes_by_itself_is_noted_too(tmp_path: Path) -> None:
    """All that it was told are gone, so its own policy chose the third."""
    blind = BLIND | {"failures_to_suspect": 100}
    async with envoy_rig(tmp_path, fleet=blind, picker={"fallbacks": 0}) as (rig, front):
        home = await home_of(rig, front, "the sea")
        await home.stop()
        names = set()
        for _ in range(4):
            # Retries beyond the list go round the cluster, and may meet the dead one once more.
            status, _, response = await rig.post(front, chat("the sea", 2))
            assert status == 200
            names.add(response.headers["x-kvring-replica"])
        assert home.name not in names
        await rig.idle()
        assert rig.in_flight() == 0


async def test_without_a_picker_requests_pass_or_fail_as_told(tmp_path: Path) -> None:
    for edits, expected in (((), 200), ((fail_closed,), 500)):
        async with envoy_rig(tmp_path, *edits) as (rig, front):
            status, _, _ = await rig.post(front, chat("the sea"))
            assert status == 200
            await rig.picker.stop()
            statuses = {(await rig.post(front, chat("the sea")))[0] for _ in range(6)}
            assert statuses == {expected}
            if expected == 200:
                # Round the replicas.
                assert min(rig.served()) > 0
            else:
                assert sum(rig.served()) == 1


async def test_a_fault_of_the_picker_is_left_to_the_failure_mode(tmp_path: Path) -> None:
    policy = {"name": "tests.integration.broken_policy"}
    for edits, expected in (((), 200), ((fail_closed,), 500)):
        async with envoy_rig(tmp_path, *edits, policy=policy) as (rig, front):
            status, _, _ = await rig.post(front, chat("the sea"))
            assert status == expected
            await rig.idle()
            assert rig.metric("kvring_model_requests_total", outcome="router_error") == 1


async def test_answers_outlive_their_picker(tmp_path: Path) -> None:
    """Whatever the failure mode: what runs when a picker goes runs to its end."""
    for edits in ((), (fail_closed,)):
        async with envoy_rig(tmp_path, *edits, count=1) as (rig, front):
            gone = asyncio.Event()

            async def talk(request: web.Request, gone: asyncio.Event = gone) -> web.StreamResponse:
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                await response.prepare(request)
                await response.write(chunk("a"))
                await gone.wait()
                await response.write(chunk("b"))
                return response

            rig.replicas[0].answer = talk
            body = json.dumps(chat("the sea", stream=True)).encode()
            async with rig.session.post(f"{front.url}/v1/chat/completions", data=body) as response:
                got = await response.content.readany()
                await rig.picker.stop()
                gone.set()
                got += await response.content.read()
            assert got == chunk("a") + chunk("b")
