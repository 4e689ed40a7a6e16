"""A real Prometheus of a test's own, that scrapes routers every second by kvring's rules."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

_START_SECONDS = 30.0
JOB = "kvring"


def program(name: str) -> str:
    """Return where `prometheus` or `promtool` is; skips without, but never in continuous integration."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI") == "true":
            raise FileNotFoundError(name)
        pytest.skip(f"no {name}")
    return found


class PrometheusServer:
    """One server, and its API."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def ask(self, path: str, **parameters: str) -> tuple[int, Any]:
        """Return the status and the whole answer of one call."""
        async with self._session.get(f"{self.url}{path}", params=parameters) as response:
            return response.status, await response.json()

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Return an expression's series as of now; AssertionError where it is none."""
        status, answer = await self.ask("/api/v1/query", query=expression)
        assert (status, answer["status"]) == (200, "success"), f"{expression}: {answer.get('error')}"
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    async def until(self, expression: str, limit_seconds: float = 30.0) -> None:
        """Wait until an expression has a result."""
        async with asyncio.timeout(limit_seconds):
            while not await self.query(expression):  # noqa: ASYNC110 - looked at from outside
                await asyncio.sleep(0.1)


@asynccontextmanager
async def prometheus_server(targets: Sequence[str], rules: Path) -> AsyncIterator[PrometheusServer]:
    """Start one that scrapes the routers at these URLs, and kill it in the end."""
    with tempfile.TemporaryDirectory() as directory:
        process, port = _start(Path(directory), targets, rules)
        try:
            async with aiohttp.ClientSession() as session:
                server = PrometheusServer(f"http://127.0.0.1:{port}", session)
                async with asyncio.timeout(_START_SECONDS):
                    while not await _answers(server, process):  # noqa: ASYNC110 - looked at from outside
                        await asyncio.sleep(0.05)
                yield server
        finally:
            process.kill()
            process.wait()


def _start(directory: Path, targets: Sequence[str], rules: Path) -> tuple[subprocess.Popen[bytes], int]:
    binary, port = program("prometheus"), _free_port()
    hosts = [target.removeprefix("http://") for target in targets]
    options = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": hosts}]}],
    }
    config = directory / "prometheus.yml"
    # JSON is YAML.
    config.write_text(json.dumps(options))
    arguments = (f"--config.file={config}", f"--storage.tsdb.path={directory}/data", "--log.level=error")
    listen = f"--web.listen-address=127.0.0.1:{port}"
    return subprocess.Popen([binary, *arguments, listen], stdout=subprocess.DEVNULL), port


async def _answers(server: PrometheusServer, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "Prometheus does not start; it says above why"
    with suppress(aiohttp.ClientError):
        status, _ = await server.ask("/api/v1/status/runtimeinfo")
        return status == 200
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
