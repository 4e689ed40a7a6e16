"""A live router lints the layouts of its traffic, and tells by /debug/layout, metrics and `kvring lint`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from loadgen.cli import kvring
from tests.integration.fleets import LiveFleet, live_fleet
from tests.router.observe.layout.prompts import body, chat, conversation, prose, system


def observe(**layout: Any) -> dict[str, Any]:
    return {"access_log": False, "explain": True, "layout": {"sample_share": 1, **layout}}


def dated(turns: int) -> list[dict[str, Any]]:
    """Return a conversation whose system prompt, of some 3,000 bytes, tells the time."""
    return conversation(turns, lambda turn: [system(f"Hushhush, 12:0{turn} o'clock.\n" + prose("rules", 50))])


def clean(turns: int) -> list[dict[str, Any]]:
    return conversation(turns, lambda turn: [system("Hushhush.\n" + prose("rules", 50))])


async def lint(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, kvring, ["lint", *arguments], prog_name="kvring")


async def get(fleet: LiveFleet, path: str) -> tuple[int, str]:
    async with fleet.session.get(f"{fleet.routers[0].address}{path}") as response:
        return response.status, await response.text()


async def report(fleet: LiveFleet) -> dict[str, Any]:
    status, text = await get(fleet, "/debug/layout")
    assert status == 200
    assert "ushhush" not in text
    told: dict[str, Any] = json.loads(text)
    return told


async def post(fleet: LiveFleet, request: dict[str, Any], path: str = "/v1/chat/completions") -> None:
    url = f"{fleet.routers[0].address}{path}"
    async with fleet.session.post(url, json={"max_tokens": 1, **request}) as response:
        await response.read()
        assert response.status == 200


async def send(fleet: LiveFleet, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Send requests one by one, each once the one before it was looked at; return the report."""
    told = await report(fleet)
    for request in requests:
        before = told["requests"] + told["skipped"]
        await post(fleet, request)
        async with asyncio.timeout(10):
            while told["requests"] + told["skipped"] == before:
                await asyncio.sleep(0.005)
                told = await report(fleet)
    return told


async def metrics(fleet: LiveFleet) -> dict[str, float]:
    lines = (await get(fleet, "/metrics"))[1].splitlines()
    return {
        name.removeprefix("kvring_layout_"): float(value)
        for name, value in (line.split(" ") for line in lines if line.startswith("kvring_layout_"))
    }


async def test_a_timestamp_in_the_system_prompt_is_found_and_costed() -> None:
    async with live_fleet(2, observe=observe()) as fleet:
        told = await send(fleet, dated(6))
        assert (told["requests"], told["skipped"], told["sample_share"]) == (6, 0, 1)
        (finding,) = told["findings"]
        assert (finding["cause"], finding["role"], finding["where"]) == ("date", "system", "messages[0]")
        assert (finding["character"], finding["requests"]) == (len("Hushhush, "), 5)
        # By bytes, four are a token: at least the instructions, in each request but the first.
        assert finding["lost_tokens"] > 5 * len(prose("rules", 50)) / 4 * 0.9
        told_as_metrics = await metrics(fleet)
        assert told_as_metrics["requests"] == 6
        assert told_as_metrics["prompt_tokens"] == told["prompt_tokens"]
        assert told_as_metrics['lost_tokens{cause="date"}'] == pytest.approx(finding["lost_tokens"], abs=1)
        assert told_as_metrics['lost_tokens{cause="tool_order"}'] == 0
        assert told_as_metrics["memory_bytes"] > 0
        assert told_as_metrics["skipped_total"] == 0

        url = fleet.routers[0].address
        table = await lint("--url", url)
        assert (table.exit_code, "is allowed" in table.stderr) == (1, True), table.output
        assert "date" in table.stdout
        assert "estimated for 6 requests from a sample of 100.0%; 0 were left out" in table.stdout
        as_json = await lint("--url", f"{url}/", "--json")
        result = orjson.loads(as_json.stdout)
        assert (as_json.exit_code, result["findings"]) == (1, told["findings"])
        assert result["fault_ratio"] == pytest.approx(finding["lost_ratio"])
        assert (await lint("--url", url, "--ignore", "date")).exit_code == 0
        assert (await lint("--url", url, "--threshold", "0.99")).exit_code == 0
        assert "ushhush" not in table.output + as_json.output


async def test_a_clean_layout_has_no_findings() -> None:
    async with live_fleet(2, observe=observe()) as fleet:
        told = await send(fleet, clean(6))
        assert (told["requests"], told["findings"], told["lost_tokens"]) == (6, [], 0)
        assert told["hit_tokens"] > 0.5 * told["prompt_tokens"]
        figures = await metrics(fleet)
        assert {value for name, value in figures.items() if name.startswith("lost_tokens")} == {0}
        table = await lint("--url", fleet.routers[0].address, "--threshold", "0")
        assert (table.exit_code, "new text" in table.stdout) == (0, True), table.output


async def test_what_is_only_asked_about_is_no_traffic() -> None:
    async with live_fleet(1, observe=observe()) as fleet:
        for request in dated(4):
            await post(fleet, request, "/debug/explain")
        told = await send(fleet, clean(1))
        assert (told["requests"], told["skipped"], told["findings"]) == (1, 0, [])


@pytest.mark.parametrize("changes", [observe(sample_share=0), observe() | {"explain": False}])
async def test_it_is_there_only_where_options_say_so(changes: dict[str, Any]) -> None:
    async with live_fleet(1, observe=changes) as fleet:
        await post(fleet, dated(1)[0])
        assert (await get(fleet, "/debug/layout"))[0] == 404
        refused = await lint("--url", fleet.routers[0].address)
        assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1), refused.output
        assert "observe.layout.sample_share" in refused.stderr
        # Metrics hold no names of texts or places, and are there wherever something is looked at.
        assert bool(await metrics(fleet)) == (changes["layout"]["sample_share"] > 0)


async def test_many_requests_at_once_pass_unhindered_in_bounded_memory() -> None:
    held = 64 * 1024
    async with live_fleet(2, observe=observe(memory_bytes=held, body_bytes=20_000)) as fleet:
        long = "A long text. " * 3000
        requests = [
            body([system(f"12:0{number % 10}\n" + prose("rules", 20)), *chat(3, f"c{number}")])
            for number in range(100)
        ] + [body([{"role": "user", "content": f"{number} {long}"}]) for number in range(20)]
        await asyncio.gather(*(post(fleet, request) for request in requests))
        seen = await metrics(fleet)
        async with asyncio.timeout(10):
            while seen["requests"] + seen["skipped_total"] < 120:
                await asyncio.sleep(0.01)
                seen = await metrics(fleet)
        assert seen["requests"] + seen["skipped_total"] == 120
        assert seen["requests"] >= 1
        assert seen["skipped_total"] >= 20
        assert seen["memory_bytes"] <= held
        assert (await send(fleet, dated(2)))["requests"] > 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, "not known here"),
        ({"sample_share": 1, "skipped": 0, "requests": "many"}, "not known here"),
        ([], "is not a kvring router's"),
    ],
)
async def test_what_is_no_report_is_refused_in_one_line(answer: Any, words: str) -> None:
    async def tell(request: web.Request) -> web.Response:
        return web.json_response(answer)

    app = web.Application()
    app.router.add_get("/debug/layout", tell)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        refused = await lint("--url", f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()
    assert (refused.exit_code, len(refused.stderr.splitlines()), words in refused.stderr) == (2, 1, True)


async def test_nobody_there() -> None:
    refused = await lint("--url", "http://127.0.0.1:9")
    assert (refused.exit_code, "no answer" in refused.stderr) == (2, True)
