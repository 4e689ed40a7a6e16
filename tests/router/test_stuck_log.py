"""A router whose log nobody reads: it serves on, and what fits into its buffer comes when somebody does."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from io import FileIO

import aiohttp

from loadgen.children import free_ports
from tests.router.scripted import BODY, ScriptedReplica

# About 450 bytes of log each, of which a pipe takes 64 KiB.
_REQUESTS = 300


async def _ready(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                async with session.get(f"{url}/readyz") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)


async def test_a_router_serves_though_nobody_reads_its_log() -> None:
    replica = ScriptedReplica("r0")
    await replica.start()
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    reading, writing = os.pipe()
    arguments = ("router", "--listen", f"127.0.0.1:{port}", "--replica", f"r0={replica.url}")
    router = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen.cli", *arguments, stderr=writing
    )
    os.close(writing)
    try:
        with FileIO(reading) as log:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as session:
                await _ready(session, url)
                for number in range(_REQUESTS):
                    headers = {"x-request-id": f"request-{number}"}
                    async with session.post(
                        f"{url}/v1/chat/completions", json=BODY, headers=headers
                    ) as response:
                        assert response.status == 200
                async with session.get(f"{url}/metrics") as response:
                    page = await response.text()
            assert "kvring_log_lines_dropped_total 0.0" in page
            router.terminate()
            told = re.findall(rb"request_id=request-(\d+) ", await asyncio.to_thread(log.read))
            assert [int(number) for number in told] == list(range(_REQUESTS))
            assert await router.wait() == 0
    finally:
        if router.returncode is None:
            router.kill()
            await router.wait()
        await replica.stop()
