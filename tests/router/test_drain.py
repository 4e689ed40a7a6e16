"""A router that is told to go: readiness fails first, what runs ends well, late clients are served."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from loadgen.children import Child, free_ports, start_child, stop_children, wait_until_ready
from tests.router.scripted import BODY, ScriptedReplica, chunk, until

_STREAM = {**BODY, "stream": True}


@asynccontextmanager
async def _router(replica: ScriptedReplica, logs: Path, *settings: str) -> AsyncIterator[tuple[Child, str]]:
    (port,) = free_ports(1)
    arguments = ["router", "--listen", f"127.0.0.1:{port}", "--replica", f"{replica.name}={replica.url}"]
    for setting in settings:
        arguments += ["--set", setting]
    child = start_child("router", arguments, logs, {})
    url = f"http://127.0.0.1:{port}"
    try:
        await wait_until_ready(child, f"{url}/readyz", 30)
        yield child, url
    finally:
        await stop_children([child], 2.0)


async def _exit_code(child: Child) -> int:
    await until(lambda: child.process.poll() is not None, limit_seconds=20)
    assert child.process.returncode is not None
    return child.process.returncode


async def test_running_streams_end_well_and_late_clients_are_served(tmp_path: Path) -> None:
    replica = ScriptedReplica("r0")
    await replica.start()
    gate = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk("first"))
        await gate.wait()
        await response.write(chunk(None, "stop") + b"data: [DONE]\n\n")
        return response

    replica.answer = slow
    async with (
        _router(replica, tmp_path) as (child, url),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
    ):

        async def one() -> bytes:
            async with session.post(f"{url}/v1/chat/completions", json=_STREAM) as response:
                return await response.read()

        running = [asyncio.create_task(one()) for _ in range(10)]
        await until(lambda: replica.running == 10)
        child.process.send_signal(signal.SIGTERM)

        async def unready() -> bool:
            async with session.get(f"{url}/readyz") as response:
                return response.status == 503

        async with asyncio.timeout(5):
            while not await unready():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
        async with session.get(f"{url}/healthz") as response:
            assert response.status == 200
        late = asyncio.create_task(one())
        await until(lambda: replica.running == 11)
        assert child.process.poll() is None
        gate.set()
        for answer in await asyncio.gather(*running, late):
            assert answer.endswith(b"data: [DONE]\n\n")
        assert await _exit_code(child) == 0
    await replica.stop()


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    replica = ScriptedReplica("r0")
    await replica.start()

    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    replica.answer = hang
    async with _router(replica, tmp_path) as (child, url), aiohttp.ClientSession() as session:
        running = asyncio.create_task(session.post(f"{url}/v1/chat/completions", json=BODY))
        await until(lambda: replica.running == 1)
        child.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert child.process.poll() is None
        child.process.send_signal(signal.SIGTERM)
        # At once, but not without a word.
        response = await running
        assert (response.status, response.headers["x-should-retry"]) == (503, "false")
        assert await _exit_code(child) == 0
        await until(lambda: replica.closed == 1)
    await replica.stop()


async def test_what_does_not_end_within_the_limit_is_cut(tmp_path: Path) -> None:
    replica = ScriptedReplica("r0")
    await replica.start()

    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    replica.answer = hang
    settings = ("limits.drain_seconds=0.5", "limits.drain_notice_seconds=0")
    async with _router(replica, tmp_path, *settings) as (child, url), aiohttp.ClientSession() as session:
        running = asyncio.create_task(session.post(f"{url}/v1/chat/completions", json=BODY))
        await until(lambda: replica.running == 1)
        child.process.send_signal(signal.SIGTERM)
        # It may have run: nobody is told to try again.
        response = await running
        assert (response.status, response.headers["x-should-retry"]) == (503, "false")
        assert await _exit_code(child) == 0
        assert replica.closed == 1
    await replica.stop()


async def test_a_stream_that_does_not_end_within_the_limit_ends_in_an_error(tmp_path: Path) -> None:
    replica = ScriptedReplica("r0")
    await replica.start()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(chunk("more"))
            await asyncio.sleep(0.05)

    replica.answer = endless
    settings = ("limits.drain_seconds=0.5", "limits.drain_notice_seconds=0")
    async with _router(replica, tmp_path, *settings) as (child, url), aiohttp.ClientSession() as session:
        async with session.post(f"{url}/v1/chat/completions", json=_STREAM) as response:
            raw = b""

            async def read() -> None:
                nonlocal raw
                async for piece in response.content.iter_any():
                    raw += piece

            child.process.send_signal(signal.SIGTERM)
            with pytest.raises(aiohttp.ClientPayloadError):
                await read()
        last = raw.strip().split(b"\n\n")[-1]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "router_stopped"
        assert b"[DONE]" not in raw
        assert await _exit_code(child) == 0
    await replica.stop()


async def test_unfit_options_are_told_and_not_traced(tmp_path: Path) -> None:
    config = tmp_path / "kvring.toml"
    config.write_text('[policy]\nname = "affinity"\n[policy.options]\nno_such = 1\n')
    child = start_child(
        "router", ["router", "--config", str(config), "--listen", "127.0.0.1:0"], tmp_path, {}
    )
    assert await _exit_code(child) == 2
    assert "no_such" in child.tail()
    assert "Traceback" not in child.tail()


async def test_a_broken_policy_of_ones_own_is_told_and_not_traced(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "broken.py").write_text("class Config(:\n")
    arguments = ["router", "--listen", "127.0.0.1:0", "--policy", "mine.broken"]
    child = start_child("router", arguments, tmp_path, {"PYTHONPATH": str(tmp_path)})
    assert await _exit_code(child) == 2
    assert "mine.broken" in child.tail()
    assert "SyntaxError" in child.tail()
    assert "Traceback" not in child.tail()


_README = Path(__file__).resolve().parents[2] / "README.md"


async def test_a_policy_of_ones_own_is_found_on_the_path(tmp_path: Path) -> None:
    replica = ScriptedReplica("r0")
    await replica.start()
    (program,) = [block for block in _README.read_text().split("```python\n") if block.startswith("# mine/")]
    package = tmp_path / "mine"
    package.mkdir()
    (package / "held.py").write_text(program.split("```")[0])
    (port,) = free_ports(1)
    arguments = ["router", "--listen", f"127.0.0.1:{port}", "--replica", f"r0={replica.url}"]
    arguments += ["--policy", "mine.held"]
    child = start_child("router", arguments, tmp_path, {"PYTHONPATH": str(tmp_path)})
    try:
        url = f"http://127.0.0.1:{port}"
        await wait_until_ready(child, f"{url}/readyz", 30)
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/chat/completions", json=BODY) as response,
        ):
            assert response.headers["x-kvring-policy"] == "mine.held"
    finally:
        await stop_children([child], 2.0)
        await replica.stop()


async def test_the_access_log_tells_who_served(tmp_path: Path) -> None:
    replica = ScriptedReplica("r0")
    await replica.start()
    async with _router(replica, tmp_path) as (child, url), aiohttp.ClientSession() as session:
        async with session.post(
            f"{url}/v1/chat/completions", data=json.dumps(BODY), headers={"x-request-id": "find-me"}
        ) as response:
            assert response.status == 200
        await until(lambda: "request_id=find-me" in child.tail())
        (line,) = [line for line in child.tail().splitlines() if "find-me" in line]
        for part in (
            "replica=r0",
            "status=200",
            "result=ok",
            "hit_tokens=16",
            "tier=bytes",
            "prompt_tokens=40",
        ):
            assert part in line
        # Never the prompt, never an address.
        assert "sea" not in line
        assert "127.0.0.1" not in line
    await replica.stop()
