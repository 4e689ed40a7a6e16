"""Child processes: none outlives its parent, and those that die say why."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.children import (
    Child,
    LaunchError,
    free_ports,
    require_free,
    start_child,
    stop_children,
    wait_until_ready,
)
from tests.loadgen.processes import gone


def program(log: Path, text: str) -> Child:
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", text], stdout=file, stderr=subprocess.STDOUT)
    return Child("some-child", process, log)


STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(60)"
)


async def until_logged(child: Child, text: str) -> None:
    for _ in range(500):
        if text in child.log.read_text():
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"{text!r} was never logged")


async def test_a_child_that_dies_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    child = program(tmp_path / "log", "print('first ' * 9000); print('the reason'); raise SystemExit(3)")
    with pytest.raises(LaunchError, match=r"some-child ended with exit code 3 before it was ready") as raised:
        await wait_until_ready(child, f"http://127.0.0.1:{free_ports(1)[0]}/health", 30)
    assert "the reason" in str(raised.value)
    assert len(str(raised.value)) < 20_000


async def test_a_child_that_is_never_ready(tmp_path: Path) -> None:
    child = program(tmp_path / "log", STUBBORN)
    try:
        with pytest.raises(LaunchError, match="was not ready within"):
            await wait_until_ready(child, f"http://127.0.0.1:{free_ports(1)[0]}/health", 0.2)
    finally:
        await stop_children([child], 0)


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    child = program(tmp_path / "log", STUBBORN)
    await until_logged(child, "up")
    await stop_children([child], 0.2)
    assert child.ended() == "was killed by SIGKILL"


async def test_a_cancelled_stop_still_ends_all(tmp_path: Path) -> None:
    child = program(tmp_path / "log", STUBBORN)
    await until_logged(child, "up")
    task = asyncio.create_task(stop_children([child], 60))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert child.ended() == "was killed by SIGKILL"


async def test_a_child_runs_the_command_line_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A package of the same name where the user happens to be must not be taken for ours.
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    monkeypatch.chdir(tmp_path)
    child = start_child("router", ["router", "--set", "listen.prt=1"], tmp_path, {})
    await asyncio.to_thread(child.process.wait, 30)
    assert child.ended() == "ended with exit code 2"
    assert "listen.prt" in child.tail()


_PARENT = """
import subprocess, sys, os, time
child = subprocess.Popen([sys.executable, '-c', '''
import sys, time
from loadgen.tether import tie_to
tie_to(int(sys.argv[1]))
print('tied', flush=True)
time.sleep(60)
''', str(os.getpid())], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
async def test_a_tied_child_dies_with_its_parent() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PARENT, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    os.kill(child, 0)
    parent.kill()
    await parent.wait()
    assert await gone([child])


def test_a_child_whose_parent_has_gone_ends_itself() -> None:
    program = "from loadgen.tether import tie_to; tie_to(1); print('alive')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


def test_free_ports_differ() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    for port in ports:
        require_free(port)


def test_a_taken_port_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(LaunchError, match="is taken"):
            require_free(taken.getsockname()[1])
