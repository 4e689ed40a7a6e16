"""A real Redis of a test's own, and listeners that are none: silent, or refusing to be written to."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis

_START_SECONDS = 10.0


def redis_program() -> str:
    """Return where redis-server is; skips the test without it, but never in continuous integration."""
    program = shutil.which("redis-server")
    if program is None:
        if os.environ.get("CI") == "true":
            raise FileNotFoundError("redis-server")
        pytest.skip("no redis-server")
    return program


class RedisServer:
    """One server on a port of its own, with an empty directory and nothing saved."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._program = redis_program()
        self._directory = directory
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        self.port = _free_port()
        # Of the bus between the nodes of a cluster.
        self.bus_port = _free_port()

    @property
    def url(self) -> SecretStr:
        return SecretStr(f"redis://127.0.0.1:{self.port}/0")

    async def start(self) -> None:
        """Start it, empty, on the same port each time."""
        self._process = await asyncio.create_subprocess_exec(
            self._program,
            *("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"),
            *("--dir", str(self._directory), "--daemonize", "no", "--cluster-port", str(self.bus_port)),
            *self._arguments,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(_START_SECONDS):
            while True:
                if self._process.returncode is not None:
                    raise RuntimeError("redis-server does not start")
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return
                await asyncio.sleep(0.01)

    async def kill(self) -> None:
        """End it without a goodbye."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None

    async def restart(self) -> None:
        """Kill it and start it anew, empty."""
        await self.kill()
        await self.start()

    def stop_answering(self) -> None:
        """Freeze it: it accepts connections and bytes, and answers nothing."""
        self._signal(signal.SIGSTOP)

    def answer_again(self) -> None:
        self._signal(signal.SIGCONT)

    async def run(self, *command: str | int) -> object:
        """Run one command, beside those under test."""
        client: Any = Redis(host="127.0.0.1", port=self.port)
        async with client:
            return await client.execute_command(*command)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@asynccontextmanager
async def redis_server(*arguments: str) -> AsyncIterator[RedisServer]:
    """Start a real Redis, and kill it in the end."""
    with tempfile.TemporaryDirectory() as directory:
        server = RedisServer(Path(directory), *arguments)
        try:
            await server.start()
            yield server
        finally:
            await server.kill()


@asynccontextmanager
async def black_hole() -> AsyncIterator[SecretStr]:
    """Accept every connection and never answer."""
    connections: list[asyncio.StreamWriter] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with suppress(OSError):
            while await reader.read(65_536):
                pass

    async with _listener(swallow, connections) as port:
        yield SecretStr(f"redis://127.0.0.1:{port}")


class ReadOnlyServer:
    """Answers as a primary does that has become a replica; counts connections."""

    def __init__(self) -> None:
        self.connections = 0
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def url(self) -> SecretStr:
        return SecretStr(f"redis://127.0.0.1:{self.port}")

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError, ValueError):
            while True:
                words = [await _word(reader) for _ in range(int((await reader.readuntil(b"\r\n"))[1:]))]
                writes = words[0].upper() in (b"EVAL", b"EVALSHA", b"SET", b"ZADD", b"HSET")
                writer.write(
                    b"-READONLY You can't write against a read only replica.\r\n" if writes else b"+OK\r\n"
                )
                await writer.drain()


@asynccontextmanager
async def read_only_server() -> AsyncIterator[ReadOnlyServer]:
    """Serve a fake Redis that refuses to be written to."""
    server = ReadOnlyServer()
    async with _listener(server._answer, server._writers) as port:
        server.port = port
        yield server


@asynccontextmanager
async def _listener(answer: object, writers: list[asyncio.StreamWriter]) -> AsyncIterator[int]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)  # type: ignore[arg-type]
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()


async def _word(reader: asyncio.StreamReader) -> bytes:
    length = int((await reader.readuntil(b"\r\n"))[1:])
    return (await reader.readexactly(length + 2))[:-2]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
