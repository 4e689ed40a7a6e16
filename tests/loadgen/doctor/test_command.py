"""The command: exit codes, one screen where all is well, stable JSON, and what it says before it sends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from loadgen.cli import kvring
from loadgen.doctor.checks import CHECKS
from tests.integration.fleets import live_fleet
from tests.loadgen.doctor.patient import write
from tests.router.scripted import rig
from tests.tiny_tokenizer import write_tiny_tokenizer


async def doctor(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.cli", "doctor", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--config"),
        (["--url", "127.0.0.1:8080"], "--url: an address begins with"),
        (["--url", "http://127.0.0.1:99999"], "--url"),
        (["--api-url", "http://127.0.0.1"], "--probe"),
        (["--config", "/nowhere.toml"], "/nowhere.toml"),
    ],
)
def test_what_cannot_be_run(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(kvring, ["doctor", *arguments])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


async def test_all_well(tmp_path: Path) -> None:
    directory = write_tiny_tokenizer(tmp_path / "m")
    async with live_fleet(2, directory, replica={"echo": {"decode_seconds": 0.005}}) as fleet:
        await fleet.fresh_digests()
        urls = {replica.options.name: replica.url for replica in fleet.replicas}
        config = write(tmp_path, urls, models={"m": {"tokenizer_directory": directory}})
        address = fleet.routers[0].address
        code, output, errors = await doctor("--config", str(config))
        assert (code, errors) == (0, "")
        assert "nothing wrong" in output.splitlines()[-1]
        # One screen.
        assert len(output.splitlines()) < 40
        code, output, errors = await doctor("--config", str(config), "--url", address, "--probe")
        assert code == 0, output
        assert errors == f"sending up to 3 requests of about 300 tokens for m to {address}\n"
        assert "ok" in output
        code, output, _ = await doctor("--url", address, "--json")
    assert code == 0
    told = orjson.loads(output)
    assert list(told) == ["well", "counts", "checks"]
    assert told["well"] is True
    assert list(told["counts"]) == ["checked", "passed_over", "wrong", "warning", "note"]
    assert [check["name"] for check in told["checks"]] == [check.name for check in CHECKS]
    assert all(list(check) == ["name", "asks", "looked", "seen", "findings"] for check in told["checks"])


async def test_something_wrong(tmp_path: Path) -> None:
    async with rig(1) as fleet:
        urls = {"r0": fleet.replicas[0].url, "r1": "http://127.0.0.1:9"}
        config = write(tmp_path, urls, chain={"block_tokens": 32, "seed": "hunter2"})
        code, output, errors = await doctor("--config", str(config))
        assert code == 1
        assert "Traceback" not in errors
        assert "wrong: another block size: r0 and the router" in output
        assert "chain.block_tokens = 16" in " ".join(output.split())
        assert "hunter2" not in output + errors
        code, output, _ = await doctor("--config", str(config), "--json")
    assert code == 1
    told = orjson.loads(output)
    findings = [finding for check in told["checks"] for finding in check["findings"]]
    assert all(list(finding) == ["severity", "title", "seen", "costs", "mend"] for finding in findings)
    assert told["counts"]["wrong"] == sum(finding["severity"] == "wrong" for finding in findings)


async def test_notes_alone_are_no_failure(tmp_path: Path) -> None:
    async with live_fleet(1) as fleet:
        config = write(tmp_path, {"r0": fleet.replicas[0].url}, listen={"host": "0.0.0.0"})
        code, output, _ = await doctor("--config", str(config))
    assert code == 0, output
    assert "note: " in output


async def test_warnings_of_the_libraries_are_not_shown(tmp_path: Path) -> None:
    redis = {"url": "redis://:hunter2@127.0.0.1:9/0"}
    code, output, errors = await doctor("--config", str(write(tmp_path, redis=redis)))
    assert (code, errors) == (1, "")
    assert "Redis cannot be used" in output
    assert "hunter2" not in output
