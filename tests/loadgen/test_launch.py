"""A real fleet of echo replicas and a router: it answers, and nothing of it is left however it ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from loadgen.children import LaunchError
from loadgen.client import Client
from loadgen.launch import Fleet, FleetPlan
from loadgen.snippets import curl_line, openai_program
from loadgen.workloads.session import Ask
from tests.loadgen.processes import children_of, gone

PLAN = FleetPlan(replicas=2, runner="echo", model="echo", policy="round_robin", ready_seconds=60)
BODY = Ask("echo", 3).body([{"role": "user", "content": "A question that fills a block or two. " * 5}])


async def test_a_fleet_answers_changes_its_policy_and_clears_its_caches() -> None:
    # Other tests of this process may keep a browser.
    before = set(children_of(os.getpid()))
    async with Fleet(PLAN) as fleet, Client(fleet.url) as client:
        pids = set(children_of(os.getpid())) - before
        assert len(pids) >= 3
        answers = [await client.ask(BODY) for _ in range(3)]
        assert [answer.error for answer in answers] == [None] * 3
        assert {answer.replica for answer in answers} == {"replica-0", "replica-1"}
        assert (answers[0].cached_tokens or 0) < (answers[2].cached_tokens or 0)
        await fleet.reset_caches()
        address = fleet.url
        await fleet.restart_router("affinity")
        assert fleet.url == address
        again = [await client.ask(BODY) for _ in range(3)]
        assert again[0].cached_tokens == answers[0].cached_tokens
        assert len({answer.replica for answer in again}) == 1
        assert fleet.take_ended() == []
    assert await gone(pids)
    assert not fleet.logs.exists()


async def test_a_replica_that_ends_is_told_once() -> None:
    async with Fleet(PLAN) as fleet:
        async with httpx.AsyncClient(trust_env=False) as http:
            url = fleet.replica_urls["replica-1"]
            assert (await http.get(f"{url}/health")).status_code == 200
        (victim,) = [pid for pid in children_of(os.getpid()) if "--name\0replica-1\0" in command_line(pid)]
        os.kill(victim, signal.SIGKILL)
        assert await gone([victim])
        ((name, failure),) = fleet.take_ended()
        assert name == "replica-1"
        assert "was killed by SIGKILL" in str(failure)
        assert fleet.take_ended() == []


async def test_a_fleet_that_does_not_start_leaves_nothing() -> None:
    before = set(children_of(os.getpid()))
    fleet = Fleet(FleetPlan(replicas=1, runner="echo", model="echo", policy="no_such_policy"))
    with pytest.raises(LaunchError, match="no_such_policy"):
        async with fleet:
            pytest.fail("it started")
    assert set(children_of(os.getpid())) <= before
    assert (fleet.logs / "router.log").exists()
    shutil.rmtree(fleet.logs)


def tempfile_directories() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("kvring-*"))


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@asynccontextmanager
async def up(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run `kvring up` on echo replicas; gives the process and what it printed by the time it was up."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.cli", "up", "--runner", "echo", "--replicas", "2", *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            text = (await process.stdout.readuntil(b"Ctrl-C ends it.")).decode()
        yield process, text
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
async def test_no_process_is_left_whatever_ends_up(number: signal.Signals, exit_code: int) -> None:
    async with up("--port", "0") as (process, text):
        logs = Path(text.split("Logs: ")[1].split()[0])
        pids = children_of(process.pid)
        assert len(pids) == 3
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 20) == exit_code
        assert await gone(pids)
        # Only an end in order can clear up.
        assert (logs in tempfile_directories()) == (number == signal.SIGKILL)
        shutil.rmtree(logs, ignore_errors=True)


async def test_an_interrupt_while_starting_leaves_nothing() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.cli", "up", "--runner", "echo", "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readuntil(b"Starting"), 30)
    for _ in range(500):
        if pids := children_of(process.pid):
            break
        await asyncio.sleep(0.01)
    assert pids
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 20) == 0
    assert await gone(pids)


async def test_what_is_printed_works_as_printed() -> None:
    async with up("--port", "0", "--policy", "least_work") as (_, text):
        url = text.split("Up at ")[1].split(",")[0]
        assert curl_line(url, "echo") in text
        assert openai_program(url, "echo") in text
        curl = await _output("sh", "-c", curl_line(url, "echo"))
        assert '"choices"' in curl
        program = await _output(sys.executable, "-c", openai_program(url, "echo"))
        assert program.strip()


async def test_a_taken_port_is_told() -> None:
    async with up("--port", "0") as (_, text):
        port = text.split("Up at http://127.0.0.1:")[1].split(",")[0]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadgen.cli", "up", "--runner", "echo", "--port", port),
            stdout=subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
        assert process.returncode == 1
        assert f"port {port} of 127.0.0.1 is taken" in errors.decode()
        assert "Traceback" not in errors.decode()


async def _output(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, errors.decode()
    return output.decode()
