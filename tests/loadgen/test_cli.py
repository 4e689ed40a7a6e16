"""The command line: help, exit codes, messages without tracebacks, and what it does not import."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import click
import orjson
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from loadgen.cli import kvring
from loadgen.commands.model_options import options_of, read_options
from loadgen.load_options import LoadOptions
from tests.loadgen.scripted import event, serve, stream, whole

COMMANDS = (
    *("bench", "ceiling", "demo", "doctor", "explain", "gate", "key", "lint", "load", "picker", "replay"),
    *("replica", "router", "shadow", "sidecar", "simulate", "trace", "up"),
)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(kvring, list(arguments), prog_name="kvring")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_all_commands(flag: str) -> None:
    result = invoke(flag)
    assert result.exit_code == 0
    listed = [
        line.split()[0] for line in result.output.partition("\nCommands:\n")[2].splitlines() if line[2] != " "
    ]
    assert tuple(listed) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(name: str) -> None:
    result = invoke(name, "-h")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: kvring {name}")


def test_version() -> None:
    assert invoke("--version").output.startswith("kvring, version ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "No such command"),
        (["router", "--listen", "8080"], "HOST:PORT"),
        (["router", "--listen", "127.0.0.1:port"], "HOST:PORT"),
        (["router", "--replica", "http://127.0.0.1:1"], "replica"),
        (["router", "--replica", "a="], "NAME=URL"),
        (["router", "--set", "listen.prt=1"], "listen.prt"),
        (["router", "--set", "listen.port=99999"], "listen.port"),
        (["router", "--set", "nothing"], "NAME=VALUE"),
        (["router", "--config", "/nowhere.toml"], "/nowhere.toml"),
        (["router", "--policy", "no_such_policy", "--listen", "127.0.0.1:0"], "no_such_policy"),
        (["router", "--set", 'observe.shadow=[{name="x", policy="nobody"}]'], "nobody"),
        (["replica", "--runner", "steam"], "steam"),
        (["replica", "--set", "sheduler.max_running=1"], "sheduler"),
        (["replica", "--port", "-1"], "port"),
        (["load", "--concurrency", "0"], "--concurrency: "),
        (["load", "--url", "127.0.0.1"], "--url: "),
        (["load", "--workload", "chess"], "chess"),
        (["up", "--replicas", "0"], "--replicas"),
    ],
)
def test_what_cannot_be_used_is_told_with_exit_code_2(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    file = tmp_path / "router.toml"
    file.write_text("[listen\n")
    result = invoke("router", "--config", str(file))
    assert (result.exit_code, "router.toml" in result.output) == (2, True)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_needs_neither_torch_nor_rich(name: str) -> None:
    program = (
        "import sys\nfrom loadgen.cli import main\n"
        f"try:\n    main(['{name}', '-h'])\nexcept SystemExit:\n    pass\n"
        "sys.exit(str({'torch', 'rich'} & set(sys.modules)) if {'torch', 'rich'} & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_options_of_a_model_keep_its_defaults_and_bounds() -> None:
    @click.command()
    @options_of(LoadOptions)
    def show(**values: object) -> None:
        assert read_options(LoadOptions, values) == LoadOptions()

    assert CliRunner().invoke(show, [], catch_exceptions=False).exit_code == 0
    assert CliRunner().invoke(show, ["--seed", "x"]).exit_code == 2


async def answer(request: web.Request) -> web.StreamResponse:
    return await stream(request, whole("a"))


async def fail(request: web.Request) -> web.StreamResponse:
    return await stream(request, [event({"error": {"message": "lost"}})])


async def load(url: str, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.cli", "load", "--url", url, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def test_load_prints_json() -> None:
    async with serve(answer) as url:
        code, output, errors = await load(url, "--requests", "5", "--turn-tokens", "5", "--json")
    assert code == 0, errors
    assert orjson.loads(output)["requests"] == 5
    assert "5/5" in errors


async def test_load_prints_a_table_and_fails_with_its_requests() -> None:
    async with serve(fail) as url:
        code, output, errors = await load(url, "--requests", "3", "--turn-tokens", "5")
    assert code == 1
    assert "3 (in_band 3)" in output
    assert "3 requests failed" in errors
    assert "lost" in errors


async def test_load_without_anybody_there() -> None:
    code, _, errors = await load("http://127.0.0.1:9")
    assert code == 1
    assert "--model" in errors
    assert "Traceback" not in errors
