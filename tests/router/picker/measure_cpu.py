"""CPU of a router, and of an Envoy with a picker, per chat of 2 KB, in one run.

python -m tests.router.picker.measure_cpu [REQUESTS]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from loadgen.children import Child, free_ports, start_child, stop_children, wait_until_ready
from tests.envoy import envoy
from tests.router.picker.envoy_config import Change, duplex, envoy_config, manager_of
from tests.router.scripted import ScriptedReplica

_CLIENTS = 16
_WARM_UP = 300
_TEXT = "The sea is wide and deep. " * 80


def _without_picker(config: dict[str, Any]) -> None:
    manager = manager_of(config)
    manager["http_filters"] = [one for one in manager["http_filters"] if not one["name"].endswith("ext_proc")]


_ENVOYS: dict[str, tuple[Change, ...]] = {
    "envoy, round robin": (_without_picker,),
    "envoy and picker, buffered": (),
    "envoy and picker, duplex": (duplex,),
}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _drive(url: str, requests: int) -> None:
    async def client(numbers: Iterator[int]) -> None:
        for number in numbers:
            # Fifty conversations, so that decisions find something to remember.
            message = {"role": "user", "content": f"conversation {number % 50}. {_TEXT}"[:1900]}
            body = json.dumps({"model": "m", "messages": [message]}).encode()
            async with session.post(f"{url}/v1/chat/completions", data=body) as response:
                await response.read()
                assert response.status == 200

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_CLIENTS)) as session:
        numbers = iter(range(requests))
        await asyncio.gather(*(client(numbers) for _ in range(_CLIENTS)))


async def _measure(name: str, url: str, requests: int, pids: dict[str, int]) -> None:
    await _drive(url, _WARM_UP)
    before = {who: _cpu_seconds(pid) for who, pid in pids.items()}
    await _drive(url, requests)
    spent = {who: (_cpu_seconds(pid) - before[who]) / requests * 1e6 for who, pid in pids.items()}
    told = " + ".join(f"{who} {each:.0f}" for who, each in spent.items())
    print(f"{name}: {told} = {sum(spent.values()):.0f} us a request")  # noqa: T201 - what it is for


async def _main(requests: int) -> None:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replicas = [ScriptedReplica(f"r{index}") for index in range(3)]
        for replica in replicas:
            await replica.start()
            stack.push_async_callback(replica.stop)
        listen, router_control, picker, health, picker_control = free_ports(5)
        members = ", ".join(f'{{ name = "{one.name}", url = "{one.url}" }}' for one in replicas)
        common = [f"fleet.replicas=[{members}]", "observe.access_log=false"]
        children: list[Child] = []
        stack.push_async_callback(stop_children, children, 2.0)
        for command, control, sets in (
            ("router", router_control, {"listen.port": listen}),
            ("picker", picker_control, {"picker.port": picker, "picker.health_port": health}),
        ):
            ports = [f"{name}={port}" for name, port in (sets | {"control.port": control}).items()]
            arguments = [command]
            for one in (*common, *ports):
                arguments += ["--set", one]
            children.append(start_child(command, arguments, directory, {}))
            await wait_until_ready(children[-1], f"http://127.0.0.1:{control}/readyz", 30)
        router, picking = (child.process.pid for child in children)
        await _measure("router", f"http://127.0.0.1:{listen}", requests, {"router": router})
        ports_of_replicas = [int(replica.url.rpartition(":")[2]) for replica in replicas]
        for name, changes in _ENVOYS.items():
            config = envoy_config(picker, ports_of_replicas, *changes)
            async with envoy(config, directory) as front:
                pids = {"envoy": front.pid} | ({"picker": picking} if "picker" in name else {})
                await _measure(name, front.url, requests, pids)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000))
