"""A replica that is stopped (SIGSTOP) is out after two polls, one in a long prefill stays; it comes back."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from loadgen.children import Child, free_ports, start_child, stop_children, wait_until_ready
from router.app import Router
from router.config import RouterConfig
from router.fleet.health import Standing
from router.fleet.replica import Replica
from tests.router.scripted import until

# S of 2,500 words is some seconds, of the short ones some hundredths.
_PREFILL = ("base_seconds=0.01", "per_token_seconds=0.001", "per_token_context_seconds=0")


def _start(name: str, port: int, logs: Path) -> Child:
    arguments = ["replica", "--name", name, "--port", str(port), "--runner", "echo", "--model", "m"]
    arguments += ["--model-directory", ""]
    for setting in ("echo.decode_seconds=0.005", "linger_seconds=0", "scheduler.max_batch_tokens=8192"):
        arguments += ["--set", setting]
    for setting in _PREFILL:
        arguments += ["--set", f"echo.prefill.{setting}"]
    return start_child(name, arguments, logs, {})


@asynccontextmanager
async def fleet_of_processes(count: int, logs: Path) -> AsyncIterator[tuple[Router, dict[str, Child]]]:
    """Start echo replicas, each a process, and a router with default options."""
    ports = free_ports(count)
    children = {f"r{index}": _start(f"r{index}", port, logs) for index, port in enumerate(ports)}
    urls = {f"r{index}": f"http://127.0.0.1:{port}" for index, port in enumerate(ports)}
    try:
        for name, child in children.items():
            await wait_until_ready(child, f"{urls[name]}/health", 30)
        config = RouterConfig.load(
            flags={
                "listen": {"port": 0},
                "fleet": {"replicas": [{"name": name, "url": url} for name, url in urls.items()]},
                "observe": {"access_log": False},
            }
        )
        router = Router(config)
        await router.start()
        try:
            await until(lambda: sum(replica.usable for replica in router.fleet.replicas) == count)
            yield router, children
        finally:
            await router.stop()
    finally:
        for child in children.values():
            child.process.send_signal(signal.SIGCONT)
        await stop_children(list(children.values()), 2.0)


def _body(words: int, number: int = 0) -> bytes:
    content = f"{number} " + "sea " * words
    return json.dumps(
        {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": content}]}
    ).encode()


def _member(router: Router, name: str) -> Replica:
    member = router.fleet.by_name(name)
    assert member is not None
    return member


async def test_a_stopped_replica_is_out_and_one_that_computes_is_not(tmp_path: Path) -> None:
    async with (
        fleet_of_processes(3, tmp_path) as (router, children),
        aiohttp.ClientSession() as session,
    ):
        url = f"{router.address}/v1/chat/completions"

        async def ask(body: bytes) -> str:
            async with session.post(url, data=body) as response:
                assert response.status == 200, await response.text()
                await response.read()
                return response.headers["x-kvring-replica"]

        home = await ask(_body(20))
        hung = _member(router, home)
        # A prefill of seconds on another: it answers polls all the while.
        long = asyncio.create_task(ask(_body(2500, 1)))
        await until(lambda: sum(one.load.in_flight for one in router.fleet.replicas) == 1)
        (busy,) = (one for one in router.fleet.replicas if one.load.in_flight)
        if busy is hung:
            hung = next(one for one in router.fleet.replicas if one is not busy)
        children[hung.name].process.send_signal(signal.SIGSTOP)
        while hung.usable:
            assert busy.usable
            await asyncio.sleep(0.01)
        assert hung.health.standing is Standing.SUSPECT
        served = []
        while not long.done():
            assert busy.usable
            served.append(await ask(_body(20)))
            await asyncio.sleep(0.05)
        assert served
        assert hung.name not in served
        assert await long == busy.name
        assert hung.load.in_flight == 0
        children[hung.name].process.send_signal(signal.SIGCONT)
        await until(lambda: hung.usable)
        back = await asyncio.gather(*(ask(_body(20, number)) for number in range(48)))
        assert set(back) == {"r0", "r1", "r2"}


async def test_requests_in_flight_on_it_are_told_and_not_sent_twice(tmp_path: Path) -> None:
    async with (
        fleet_of_processes(2, tmp_path) as (router, children),
        aiohttp.ClientSession() as session,
    ):
        url = f"{router.address}/v1/chat/completions"

        async def ask() -> int:
            async with session.post(url, data=_body(1000)) as response:
                await response.read()
                return response.status

        asked = asyncio.create_task(ask())
        await until(lambda: sum(one.load.in_flight for one in router.fleet.replicas) == 1)
        (hung,) = (one for one in router.fleet.replicas if one.load.in_flight)
        (other,) = (one for one in router.fleet.replicas if one is not hung)
        told: list[str] = []
        hung.stall.watchers.add(lambda: told.append(hung.name))
        children[hung.name].process.send_signal(signal.SIGSTOP)
        await until(lambda: not hung.usable)
        assert told == [hung.name]
        # It may run, so it is nobody else's: it waits for its answer.
        assert (hung.load.in_flight, other.load.in_flight) == (1, 0)
        assert not asked.done()
        children[hung.name].process.send_signal(signal.SIGCONT)
        assert await asked == 200
        await until(lambda: hung.usable)
