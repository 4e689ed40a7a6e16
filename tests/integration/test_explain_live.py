"""A live router explains itself: before a request, after it, on the command line, and about its shadows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
from click.testing import CliRunner, Result

from loadgen.cli import kvring
from tests.integration.fleets import MODEL, LiveFleet, live_fleet
from tests.router.scripted import until

CHAT = [{"role": "user", "content": "Tell me of the sea, and of ships, and of the wind. " * 20}]
SECRET = "sea, and of ships"


async def cli(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, kvring, list(arguments), prog_name="kvring")


async def ask(fleet: LiveFleet, path: str, body: Any = None) -> tuple[int, str]:
    method = "GET" if body is None else "POST"
    async with fleet.session.request(method, f"{fleet.routers[0].address}{path}", json=body) as response:
        return response.status, await response.text()


async def send(fleet: LiveFleet, request_id: str, **fields: Any) -> str:
    """Send the chat under a request id; return who served it."""
    body = {"model": MODEL, "messages": CHAT, "max_tokens": 2, **fields}
    url = f"{fleet.routers[0].address}/v1/chat/completions"
    async with fleet.session.post(url, json=body, headers={"x-request-id": request_id}) as response:
        await response.read()
        assert response.status == 200
        return response.headers["x-kvring-replica"]


async def test_a_request_is_explained_before_and_after_it_ran() -> None:
    async with live_fleet(3, observe={"access_log": False, "explain": True}) as fleet:
        body = {"model": MODEL, "messages": CHAT}
        status, text = await ask(fleet, "/debug/explain", body)
        before = json.loads(text)
        assert (status, len(before["ranking"]), before["outcome"]) == (200, 3, None)
        assert before["seen_tokens"] == 0
        # Nothing came of asking: the same answer, and no request counted.
        again = json.loads((await ask(fleet, "/debug/explain", body))[1])
        assert [one["replica"] for one in again["ranking"]] == [one["replica"] for one in before["ranking"]]

        served = await send(fleet, "first")
        assert served == before["chosen"]
        assert await send(fleet, "second/of,them", stream=True) == served
        status, text = await ask(fleet, "/debug/explain/second%2Fof,them")
        after = json.loads(text)
        outcome = after["outcome"]
        assert (status, outcome["replica"], outcome["result"]) == (200, served, "ok")
        assert outcome["streamed"] is True
        assert outcome["hit_tokens"] == outcome["expected_tokens"] == after["seen_tokens"] > 0
        assert outcome["misses"] == {"partial_block": outcome["prompt_tokens"] - outcome["hit_tokens"]}
        assert 0 < outcome["first_byte_seconds"] <= outcome["total_seconds"]
        for told in (json.dumps(before), text):
            assert SECRET not in told
            assert "127.0.0.1" not in told


async def test_explanations_are_off_unless_asked_for() -> None:
    async with live_fleet(1) as fleet:
        await send(fleet, "one")
        for path, body in (("/debug/explain", {}), ("/debug/explain/one", None), ("/debug/shadow", None)):
            assert (await ask(fleet, path, body))[0] == 404
        told = await cli("explain", "--url", fleet.routers[0].address, "--request-id", "one")
        assert told.exit_code == 1
        assert "observe.explain = true" in told.stderr
        assert "control.port" not in told.stderr


async def test_who_asks_the_port_of_the_api_is_sent_to_the_control_port() -> None:
    async with live_fleet(1, observe={"access_log": False, "explain": True}, control={"port": 0}) as fleet:
        await send(fleet, "one")
        router = fleet.routers[0]
        for command in (("explain", "--request-id", "one"), ("shadow",), ("lint",)):
            told = await cli(*command, "--url", router.address)
            assert told.exit_code in (1, 2)
            assert "or ask its control port (control.port)" in told.stderr
        assert (await cli("explain", "--request-id", "one", "--url", router.control_address)).exit_code == 0


async def test_bad_questions_get_clear_answers() -> None:
    async with live_fleet(1, observe={"access_log": False, "explain": True}) as fleet:
        for body, status in (
            ({}, 400),
            ({"model": MODEL, "messages": 3}, 400),
            ({"model": "x", "prompt": "y"}, 404),
        ):
            got, text = await ask(fleet, "/debug/explain", body)
            assert (got, "error" in json.loads(text)) == (status, True)
        status, text = await ask(fleet, "/debug/explain/nobody")
        assert (status, json.loads(text)["error"]["code"]) == (404, "request_not_found")


async def test_the_command_line_shows_it(tmp_path: Path) -> None:
    async with live_fleet(2, observe={"access_log": False, "explain": True}) as fleet:
        url = fleet.routers[0].address
        served = await send(fleet, "one")
        path = tmp_path / "request.json"
        path.write_text(json.dumps({"model": MODEL, "messages": CHAT}))
        table = await cli("explain", "--url", url, "--body", str(path))
        assert table.exit_code == 0, table.output
        assert f"{served} before" in table.output
        one = await cli("explain", "--url", f"{url}/", "--request-id", "one", "--json")
        assert orjson.loads(one.stdout)["outcome"]["misses"]["cold"] > 0
        shown = await cli("explain", "--url", url, "--request-id", "one")
        assert "missed: cold" in shown.output

        neither = await cli("explain", "--url", url)
        assert (neither.exit_code, "--request-id" in neither.stderr) == (2, True)
        gone = await cli("explain", "--url", url, "--request-id", "nobody")
        assert (gone.exit_code, "no such request" in gone.stderr) == (1, True)
    dead = await cli("explain", "--url", url, "--request-id", "one")
    assert (dead.exit_code, "no answer" in dead.stderr) == (1, True)


async def test_shadows_are_compared_with_the_policy_that_acts() -> None:
    shadow = [
        {"name": "twin", "policy": "affinity", "sample_share": 1},
        {"name": "turns", "policy": "round_robin", "sample_share": 1},
        {"name": "broken", "policy": "tests.integration.broken_policy", "sample_share": 1},
    ]
    async with live_fleet(4, observe={"access_log": False, "shadow": shadow}) as fleet:
        for number in range(12):
            chat = [{"role": "user", "content": f"{number}: " + "Tell me of the sea. " * 20}]
            for _ in range(3):
                reply = await fleet.chat(chat, max_tokens=1)
                assert reply.status == 200
                chat += [
                    {"role": "assistant", "content": "x"},
                    {"role": "user", "content": "And then? " * 20},
                ]
        report = json.loads((await ask(fleet, "/debug/shadow"))[1])
        assert report["acting"] == "affinity"
        twin, turns, broken = report["shadows"]
        assert (twin["requests"], twin["errors"]) == (36, 0)
        assert twin["agreement"] >= 0.97
        assert turns["agreement"] < 0.6
        courses = turns["courses"]
        assert courses["shadow"]["hit_ratio"] < courses["acting"]["hit_ratio"] - 0.1
        assert courses["shadow"]["moved_share"] > courses["acting"]["moved_share"]
        assert (broken["requests"], broken["errors"]) == (0, 36)
        metrics = (await ask(fleet, "/metrics"))[1]
        assert 'kvring_shadow_requests_total{shadow="twin"} 36.0' in metrics
        assert 'kvring_shadow_errors_total{shadow="broken"} 36.0' in metrics
        table = await cli("shadow", "--url", fleet.routers[0].address)
        assert (table.exit_code, "twin" in table.output) == (0, True)


async def test_a_shadow_leaves_the_acting_policys_memory_alone() -> None:
    shadow = [{"name": "turns", "policy": "round_robin", "sample_share": 1}]
    kept: list[list[bool]] = []
    for shadows in ([], shadow):
        async with live_fleet(4, observe={"access_log": False, "shadow": shadows}) as fleet:
            turns = []
            for number in range(8):
                chat = [{"role": "user", "content": f"{number}: " + "Tell me of the sea. " * 20}]
                for _ in range(2):
                    await until(
                        lambda: not any(one.load.in_flight for one in fleet.routers[0].fleet.replicas)
                    )
                    turns.append((await fleet.chat(chat, max_tokens=1)).replica)
            kept.append([first == second for first, second in zip(turns[::2], turns[1::2], strict=True)])
    assert kept == [[True] * 8] * 2
