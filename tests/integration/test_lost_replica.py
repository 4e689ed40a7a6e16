"""A replica that is killed: no client notices, it is out at once, and back after its restart."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from pathlib import Path
from typing import Any

import aiohttp

from loadgen.children import Child, free_ports, start_child, stop_children, wait_until_ready
from router.app import Router
from router.config import RouterConfig
from tests.router.scripted import until


def _start(name: str, port: int, logs: Path) -> Child:
    arguments = ["replica", "--name", name, "--port", str(port), "--runner", "echo", "--model", "m"]
    arguments += ["--model-directory", ""]
    for setting in ("echo.decode_seconds=0.005", "echo.prefill.base_seconds=0.02", "linger_seconds=0"):
        arguments += ["--set", setting]
    return start_child(name, arguments, logs, {})


def _body(number: int) -> bytes:
    content = f"{number} " + "tell me about the sea " * 20
    return json.dumps(
        {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": content}]}
    ).encode()


async def test_a_killed_replica_costs_no_client_anything(tmp_path: Path) -> None:
    ports = free_ports(3)
    children = {f"r{index}": _start(f"r{index}", port, tmp_path) for index, port in enumerate(ports)}
    urls = {f"r{index}": f"http://127.0.0.1:{port}" for index, port in enumerate(ports)}
    try:
        for name, child in children.items():
            await wait_until_ready(child, f"{urls[name]}/health", 30)
        config = RouterConfig.load(
            flags={
                "listen": {"port": 0},
                "fleet": {
                    "replicas": [{"name": name, "url": url} for name, url in urls.items()],
                    "state_poll_seconds": 0.05,
                },
                "observe": {"access_log": False},
            }
        )
        router = Router(config)
        await router.start()
        fleet = router.fleet
        try:
            await until(lambda: sum(replica.usable for replica in fleet.replicas) == 3)
            await _under_load(router, children, tmp_path, ports)
        finally:
            await router.stop()
    finally:
        await stop_children(list(children.values()), 2.0)


async def _under_load(router: Router, children: dict[str, Child], logs: Path, ports: list[int]) -> None:
    statuses: list[int] = []
    served_late: list[str] = []
    lost: dict[str, Any] = {}
    url = f"{router.address}/v1/chat/completions"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def client(which: int) -> None:
            for number in range(25):
                async with session.post(url, data=_body(which * 1000 + number)) as response:
                    answer = await response.json()
                    statuses.append(response.status)
                    assert response.status == 200, answer
                    assert answer["choices"][0]["message"]["content"]
                    if lost.get("out"):
                        served_late.append(response.headers["x-kvring-replica"])

        clients = [asyncio.create_task(client(which)) for which in range(12)]
        await until(lambda: len(statuses) > 60)
        victim = router.fleet.by_name("r1")
        assert victim is not None
        await until(lambda: victim.load.in_flight > 0)
        children["r1"].process.send_signal(signal.SIGKILL)
        children["r1"].process.wait()
        await until(lambda: not victim.usable)
        lost["out"] = True
        await asyncio.gather(*clients)
        assert len(statuses) == 300
        assert "r1" not in served_late
        assert served_late
        _wait_free(ports[1])
        children["r1"] = _start("r1", ports[1], logs)
        await until(lambda: victim.usable, limit_seconds=30)
        assert victim.load.in_flight == 0
        back = set()
        for number in range(60):
            async with session.post(url, data=_body(number * 7919)) as response:
                back.add(response.headers["x-kvring-replica"])
        assert back == {"r0", "r1", "r2"}


def _wait_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
