"""Child processes: started with a log file each, waited for until ready, stopped whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

_POLL_SECONDS = 0.1
_TAIL_LINES = 20
# Runs a kvring command that never outlives this process.
_TETHER = Path(__file__).with_name("tether.py")


class LaunchError(RuntimeError):
    """A process cannot be started or has died; the message says which, and shows the end of its log."""


@dataclass(frozen=True, slots=True)
class Child:
    """A running kvring command."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def ended(self) -> str | None:
        """Say how it ended, or None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def tail(self) -> str:
        """Return the last lines of its log."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 16_384))
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-_TAIL_LINES:])

    def failure(self, what: str) -> LaunchError:
        """Return the error that tells what happened to it."""
        return LaunchError(f"{self.name} {what}. Its log, {self.log}, ends:\n{self.tail()}")


def start_child(
    name: str,
    arguments: Sequence[str],
    logs: Path,
    environment: Mapping[str, str],
    program: Path = _TETHER,
) -> Child:
    """Start `kvring ARGUMENTS...` with its output in a file; call it from the main thread.

    Another `program` gets the parent's process id ahead of the arguments, and ties itself to it.
    """
    log = logs / f"{name.replace(' ', '-')}.log"
    # Appended to, so that it can be cut meanwhile.
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", str(program), str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            # Ctrl-C reaches the parent alone, which stops its children in order.
            start_new_session=True,
        )
    return Child(name, process, log)


async def wait_until_ready(child: Child, url: str, timeout_seconds: float) -> None:
    """Ask `url` until it answers 200; LaunchError if the child ends first or takes too long."""
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    async with httpx.AsyncClient(trust_env=False, timeout=2.0) as http:
        while True:
            if (how := child.ended()) is not None:
                raise child.failure(f"{how} before it was ready")
            try:
                if (await http.get(url)).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            if asyncio.get_running_loop().time() > deadline:
                raise child.failure(
                    f"was not ready within {timeout_seconds:.0f} s ({url} does not answer 200)"
                )
            await asyncio.sleep(_POLL_SECONDS)


async def stop_children(children: Sequence[Child], grace_seconds: float) -> None:
    """End all: SIGTERM, and SIGKILL for those that still run after `grace_seconds`. None is left."""
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    deadline = asyncio.get_running_loop().time() + grace_seconds
    try:
        while any(child.process.poll() is None for child in children):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.02)
    finally:
        for child in children:
            if child.process.poll() is None:
                child.process.kill()
            child.process.wait()


def free_ports(count: int) -> list[int]:
    """Return `count` different ports of 127.0.0.1 that are free now."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for held_socket in sockets:
            held_socket.bind(("127.0.0.1", 0))
        return [held_socket.getsockname()[1] for held_socket in sockets]


def require_free(port: int) -> None:
    """LaunchError if `port` of 127.0.0.1 is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise LaunchError(f"port {port} of 127.0.0.1 is taken; choose another with --port") from error
