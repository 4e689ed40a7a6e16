"""`kvring replay`: a table or JSON, exit code 1 for failed requests, 2 for what does not fit."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import orjson
import pytest
from aiohttp import web
from click.testing import CliRunner

from loadgen.cli import kvring
from loadgen.traces.generate.kinds import generate
from loadgen.traces.mooncake import write_mooncake
from tests.loadgen.replay.scripted import serve, whole
from tests.loadgen.scripted import stream


async def replay(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.cli", "replay", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "t.jsonl"
    write_mooncake(generate("chat", 0, conversations=10, turns=2, turn_seconds=0.1), path)
    return str(path)


async def answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    return await stream(request, whole("a", prompt=len(body["prompt"]), cached=16), replica="r0")


async def refuse(request: web.Request) -> web.StreamResponse:
    return web.Response(status=503, text="not now")


async def test_json_has_both_halves(trace: str) -> None:
    async with serve(answer) as url:
        code, output, errors = await replay("--url", url, "--trace", trace, "--json", "--set", "routers=2")
    assert code == 0, errors
    live, simulated = orjson.loads(output)
    assert (live["source"], simulated["source"]) == ("live", "simulated")
    assert (simulated["replicas"], simulated["routers"]) == (1, 2)
    assert live["trace"] == simulated["trace"] == "t"
    assert "20/20" in errors


async def test_failed_requests_are_told_beside_the_table(trace: str) -> None:
    async with serve(refuse) as url:
        code, output, errors = await replay("--url", url, "--trace", trace, "--requests", "4")
    assert code == 1
    assert "simulated" in output
    assert "4 requests failed, the first by http_503: not now" in errors


async def test_nobody_there_is_told(trace: str) -> None:
    code, _, errors = await replay("--url", "http://127.0.0.1:9", "--trace", trace)
    assert code == 2
    assert "lists no model" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "nope"], "no trace 'nope'"),
        (["--set", "wheels=4"], "wheels"),
        (["--set", "routers=0"], "routers"),
        (["--time-scale", "0"], "--time-scale"),
        (["--requests", "x"], "--requests"),
        (["--prompt", "pictures"], "pictures"),
        (["--policy", "no_such_policy"], "no_such_policy"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_asked(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(kvring, ["replay", "--trace", "synthetic", *arguments])
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "lists no model" not in result.output
