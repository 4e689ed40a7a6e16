"""Measures what a router costs: memory at rest and with replicas to watch, CPU a second and a request.

    python -m tests.deploy.sizing

The router is a process of its own; replicas are scripted and answer at once. Linux only: reads /proc.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.deploy.chart import ROOT
from tests.router.scripted import ScriptedReplica, chunk, completion, stream

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_REST_SECONDS = 10.0
_CONCURRENT = 16
_WORDS = "the quick brown fox jumps over a lazy dog near some river bank while it rains "


class Process:
    """A running `kvring router`."""

    def __init__(self, pid: int, url: str, control: str) -> None:
        self._pid = pid
        self.url = url
        self.control = control

    def cpu_seconds(self) -> float:
        """What it has used since it started."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_SECONDS

    def mebibytes(self) -> float:
        """What it holds in memory now."""
        (line,) = [
            line
            for line in Path(f"/proc/{self._pid}/status").read_text().splitlines()
            if line.startswith("VmRSS")
        ]
        return int(line.split()[1]) / 1024


@asynccontextmanager
async def _router(replicas: list[ScriptedReplica], tokenizer: Path | None) -> AsyncIterator[Process]:
    port, control = 18080, 18081
    config: dict[str, Any] = {
        "listen.port": port,
        "control.port": control,
        "fleet.replicas": [{"name": one.name, "url": one.url} for one in replicas],
        "observe.access_log": False,
    }
    if tokenizer:
        config["models.m.tokenizer_directory"] = str(tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "router.toml"
        file.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in config.items()))
        child = await asyncio.create_subprocess_exec(
            Path(sys.executable).parent / "kvring", "router", "--config", file, stderr=subprocess.DEVNULL
        )
        try:
            process = Process(child.pid, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{control}")
            await _ready(process, len(replicas))
            yield process
        finally:
            child.kill()
            await child.wait()


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


async def _ready(process: Process, count: int) -> None:
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"{process.control}/readyz") as response:
                    if (await response.json()).get("usable_replicas") == count:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


async def _replicas(stack: AsyncExitStack, count: int) -> list[ScriptedReplica]:
    replicas = [ScriptedReplica(f"replica-{index}") for index in range(count)]
    for replica in replicas:
        await replica.start()
        stack.push_async_callback(replica.stop)
    return replicas


async def _at_rest(count: int, tokenizer: Path | None) -> None:
    async with AsyncExitStack() as stack:
        replicas = await _replicas(stack, count)
        process = await stack.enter_async_context(_router(replicas, tokenizer))
        await asyncio.sleep(_REST_SECONDS / 2)
        before, asked = process.cpu_seconds(), sum(one.states_asked for one in replicas)
        await asyncio.sleep(_REST_SECONDS)
        used = process.cpu_seconds() - before
        polls = sum(one.states_asked for one in replicas) - asked
        _tell(
            f"{_about(count, tokenizer)}, at rest: {process.mebibytes():.0f} MiB,"
            f" {1000 * used / _REST_SECONDS:.0f} ms CPU/s, {polls / _REST_SECONDS:.0f} polls/s"
        )


async def _under_load(
    count: int, tokenizer: Path | None, system_words: int, pieces: int, turns: int, conversations: int
) -> None:
    """Chats of `turns` turns each over one system prompt; `pieces` are a streamed answer's, 0 is plain."""
    async with AsyncExitStack() as stack:
        replicas = await _replicas(stack, count)
        for replica in replicas:
            replica.tells_load = True
            replica.answer = _streamed(pieces) if pieces else _plain
        process = await stack.enter_async_context(_router(replicas, tokenizer))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        gate = asyncio.Semaphore(_CONCURRENT)
        await asyncio.gather(*(_converse(process, session, gate, system_words, -1 - n, 2) for n in range(8)))
        before = process.cpu_seconds()
        await asyncio.gather(
            *(_converse(process, session, gate, system_words, n, turns) for n in range(conversations))
        )
        used = process.cpu_seconds() - before
        _tell(
            f"{_about(count, tokenizer)}, system prompt of {system_words} words, {turns} turns,"
            f" {pieces or 'no'} pieces: {1e6 * used / (conversations * turns):.0f} us CPU a request,"
            f" {process.mebibytes():.0f} MiB after {conversations * turns}"
        )


def _about(count: int, tokenizer: Path | None) -> str:
    return f"{count} replicas, {'with' if tokenizer else 'no'} tokenizer"


async def _plain(request: web.Request) -> web.StreamResponse:
    return web.json_response(completion())


def _streamed(pieces: int) -> Any:
    parts = [chunk(" word") for _ in range(pieces)]
    parts += [chunk(None, "stop"), chunk(None, choices=[], usage=completion()["usage"]), b"data: [DONE]\n\n"]

    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request, parts)

    return answer


async def _converse(
    process: Process,
    session: aiohttp.ClientSession,
    gate: asyncio.Semaphore,
    system_words: int,
    number: int,
    turns: int,
) -> None:
    words = (_WORDS * (system_words // 16 + 1)).split()[:system_words]
    messages = [{"role": "system", "content": " ".join(words)}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Chat {number}, turn {turn}: {_WORDS * 4}"})
        async with gate:
            body = {"model": "m", "messages": messages, "stream": True}
            async with session.post(f"{process.url}/v1/chat/completions", json=body) as response:
                assert response.status == 200, await response.text()
                await response.read()
        messages.append({"role": "assistant", "content": f"Answer {number}/{turn}: {_WORDS * 8}"})


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _measure(tokenizer: Path) -> None:
    for count, reads in ((1, None), (1, tokenizer), (16, tokenizer), (256, tokenizer)):
        await _at_rest(count, reads)
    for count, reads, words, pieces in (
        (16, None, 20, 0),
        (16, None, 100, 0),
        (16, None, 100, 200),
        (16, tokenizer, 2000, 0),
        (16, tokenizer, 2000, 200),
        (256, tokenizer, 2000, 200),
    ):
        await _under_load(count, reads, words, pieces, turns=5, conversations=200)


def main() -> None:
    """Measure, and tell each figure on a line."""
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = Path(scratch) / "tokenizer"
        write = ROOT / "deploy" / "write_model.py"
        subprocess.run([sys.executable, write, "--tokenizer-only", tokenizer], check=True, cwd=ROOT)
        asyncio.run(_measure(tokenizer))


if __name__ == "__main__":
    main()
