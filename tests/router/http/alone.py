"""A router in a process of its own, as it is run; and what the kernel tells of it from outside."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from loadgen.bench.relay.clocks import memory_bytes
from loadgen.children import Child, free_ports, start_child, stop_children, wait_until_ready

CHAT = "/v1/chat/completions"


class Alone:
    """One router on `port`; a session for its metrics."""

    def __init__(self, child: Child, port: int, session: aiohttp.ClientSession) -> None:
        self.child = child
        self.port = port
        self.session = session

    @property
    def pid(self) -> int:
        return self.child.process.pid

    def resident_bytes(self) -> int:
        return memory_bytes([self.pid])[0]

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    async def metrics(self) -> str:
        async with self.session.get(f"http://127.0.0.1:{self.port}/metrics") as response:
            assert response.status == 200
            return await response.text()

    async def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        lines = (await self.metrics()).splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith(name) and line[len(name)] in " {"
        )


@asynccontextmanager
async def alone(replicas: Sequence[tuple[str, str]], logs: Path, *settings: str) -> AsyncIterator[Alone]:
    """Start a router over replicas (names and URLs), with options as for --set."""
    (port,) = free_ports(1)
    arguments = ["router", "--listen", f"127.0.0.1:{port}"]
    for name, url in replicas:
        arguments += ["--replica", f"{name}={url}"]
    for setting in ("observe.access_log=false", *settings):
        arguments += ["--set", setting]
    child = start_child("router", arguments, logs, {"OMP_NUM_THREADS": "1"})
    try:
        await wait_until_ready(child, f"http://127.0.0.1:{port}/readyz", 30)
        async with aiohttp.ClientSession() as session:
            yield Alone(child, port, session)
    finally:
        await stop_children([child], 4.0)


async def connect(port: int, receive_bytes: int = 0) -> socket.socket:
    """Connect to a port of 127.0.0.1; with `receive_bytes`, the kernel takes in little more than that."""
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return client


def post(body: object, path: str = CHAT, headers: bytes = b"") -> bytes:
    """Return a request; `headers` are lines with their ends."""
    data = json.dumps(body).encode()
    return (
        b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b"
        % (path.encode(), len(data), headers, data)
    )


def queued_bytes(one: int, other: int) -> int:
    """Return what the kernel holds between two ports of 127.0.0.1, sent and not read yet, both ways."""
    total = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        ports = {int(address.rpartition(":")[2], 16) for address in (local, remote)}
        if ports == {one, other}:
            to_send, to_read = queues.split(":")
            total += int(to_send, 16) + int(to_read, 16)
    return total
