"""A rolling restart of the whole fleet and of both routers, under load: nothing is lost."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import aiohttp

from replica.app import start
from router.app import Router
from router.config import RouterConfig
from tests.integration.fleets import MODEL, LiveFleet, echo_options, live_fleet
from tests.router.scripted import until

# As a rollout does it: told to go, a pod is left out of its Service within this.
_NOTICE_SECONDS = 0.2
_DRAIN: dict[str, Any] = {"linger_seconds": 0.6, "drain_seconds": 20}
_LIMITS = {"drain_seconds": 20, "drain_notice_seconds": 0.6}


class _Service:
    """Sends to routers that said a moment ago that they are ready, as a load balancer does."""

    def __init__(self, fleet: LiveFleet) -> None:
        self._fleet = fleet
        self._ready: list[str] = []
        self._turn = 0
        self.outcomes: Counter[str] = Counter()

    async def watch(self) -> None:
        while True:
            ready = []
            for router in list(self._fleet.routers):
                try:
                    async with self._fleet.session.get(f"{router.address}/readyz") as response:
                        if response.status == 200:
                            ready.append(router.address)
                except aiohttp.ClientError:
                    pass
            self._ready = ready
            await asyncio.sleep(_NOTICE_SECONDS / 4)

    async def chat(self, number: int) -> None:
        """Stream one chat to its end; whatever does not end well is an outcome of its own."""
        self._turn += 1
        address = self._ready[self._turn % len(self._ready)]
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"Chat {number % 40}. " + f"w{number % 40} " * 60}],
            "max_tokens": 40,
            "stream": True,
        }
        # A connection each: a Service chooses by connection.
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
                session.post(f"{address}/v1/chat/completions", json=body) as response,
            ):
                raw = await response.read()
        except aiohttp.ClientError as error:
            self.outcomes[type(error).__name__] += 1
            return
        if response.status != 200:
            self.outcomes[f"{response.status} {json.loads(raw)['error']['message']}"] += 1
        else:
            whole = raw.endswith(b"data: [DONE]\n\n") and b'"error"' not in raw
            self.outcomes["whole" if whole else "cut"] += 1


async def _restart_replica(fleet: LiveFleet, index: int) -> None:
    old = fleet.replicas[index]
    await old.drain()
    await old.stop()
    echo = {"decode_seconds": 0.01}
    fleet.replicas[index] = await start(
        echo_options(old.options.name, fleet.directory, port=old.port, echo=echo, **_DRAIN)
    )


async def _restart_router(fleet: LiveFleet, index: int) -> None:
    old = fleet.routers[index]
    port = int(old.address.rsplit(":", 1)[1])
    config: RouterConfig = old.gateway.serving.config
    await old.drain()
    await old.stop()
    changed = config.model_construct(
        **{name: getattr(config, name) for name in RouterConfig.model_fields}
        | {"listen": config.listen.model_copy(update={"port": port})}
    )
    fleet.routers[index] = Router(changed)
    await fleet.routers[index].start()


async def test_a_rolling_restart_under_load_loses_nothing() -> None:
    replica = {"echo": {"decode_seconds": 0.01}, **_DRAIN}
    async with live_fleet(3, routers=2, replica=replica, limits=_LIMITS) as fleet:
        service = _Service(fleet)
        watching = asyncio.create_task(service.watch())
        await until(lambda: len(service._ready) == 2)
        chats: set[asyncio.Task[None]] = set()
        over = asyncio.Event()

        async def load() -> int:
            number = 0
            while not over.is_set():
                chats.add(asyncio.create_task(service.chat(number)))
                number += 1
                await asyncio.sleep(0.02)
            return number

        loading = asyncio.create_task(load())
        async with asyncio.timeout(90):
            for index in range(3):
                await _restart_replica(fleet, index)
                # The next only once this one is ready, as a StatefulSet waits.
                name = fleet.replicas[index].options.name
                await until(lambda name=name: all(_usable(router, name) for router in fleet.routers))  # type: ignore[misc]
            for index in range(2):
                await _restart_router(fleet, index)
                await until(lambda index=index: fleet.routers[index].address in service._ready)  # type: ignore[misc]
            over.set()
            sent = await loading
            await asyncio.gather(*chats)
        watching.cancel()
        assert dict(service.outcomes) == {"whole": sent}
        assert sent > 100
        for router in fleet.routers:
            assert router.gateway.held == 0
            assert all(not member.load.in_flight for member in router.fleet.replicas)
        for running in fleet.replicas:
            await running.stop()
        for router in fleet.routers:
            await router.stop()


def _usable(router: Router, name: str) -> bool:
    member = router.fleet.by_name(name)
    return member is not None and member.usable
