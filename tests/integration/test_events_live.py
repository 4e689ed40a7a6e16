"""An engine that publishes KV events and no digest: routers know what it holds.

The engine is our replica, asked for nothing but what vLLM tells: /health, /v1/models, /metrics, events.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from replica.app import start
from replica.options import ReplicaOptions
from router.config import RouterConfig
from router.fleet.replica import Replica
from router.sidecar.app import Sidecar
from router.sidecar.options import SidecarOptions
from tests.integration.fleets import MODEL, LiveFleet, echo_options, live_fleet
from tests.router.scripted import until
from tests.tiny_tokenizer import write_tiny_tokenizer

_EVENTS = {"enabled": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"}
_AS_VLLM: dict[str, Any] = {"engine": "vllm", "events": {"source": "replica"}}
# A hit must be worth more than a near-tie, and than what a busy machine adds.
_COSTS = {"prefill": {"base_seconds": 0.0005, "per_token_seconds": 5e-4, "per_token_context_seconds": 0}}
_POLICY = {"options": {"near_tie_seconds": 0.001}}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_tokenizer(tmp_path / "model")


def _options(name: str, directory: Path, **changes: Any) -> ReplicaOptions:
    return echo_options(name, directory, events=_EVENTS, **changes)


@asynccontextmanager
async def _engines(directory: Path, count: int = 2) -> AsyncIterator[LiveFleet]:
    async with live_fleet(
        count,
        directory,
        replica={"events": _EVENTS, "echo": _COSTS},
        fleet={**_AS_VLLM, "digest_poll_seconds": 0.1},
        policy=_POLICY,
    ) as fleet:
        yield fleet


def _chat(number: int, turns: int = 1) -> list[dict[str, Any]]:
    return [
        {"role": "assistant" if place % 2 else "user", "content": f"Turn {place} of {number}. " * 12}
        for place in range(2 * turns - 1)
    ]


async def _knows_all(fleet: LiveFleet, router: int = 0) -> None:
    """Wait until a router's digests hold just what the replicas' own do."""

    async def knows(member: Replica) -> bool:
        async with fleet.session.get(f"{member.url}/digest") as response:
            bits = b64decode((await response.json())["bits"])
        return member.digest is not None and member.digest.bits == bits

    members = fleet.routers[router].fleet.replicas
    async with asyncio.timeout(10):
        while not all([await knows(member) for member in members]):  # noqa: ASYNC110 - elsewhere
            await asyncio.sleep(0.05)


async def test_digests_made_of_events_are_those_of_the_replica(directory: Path) -> None:
    async with _engines(directory) as fleet:
        members = fleet.routers[0].fleet.replicas
        assert {member.engine for member in members} == {"vllm"}
        assert all(member.state is None for member in members)
        for number in range(12):
            await fleet.chat(_chat(number))
        await _knows_all(fleet)
        # Another router, which has seen none of these: it replays what was published before it came.
        await fleet.add_router(fleet={**_AS_VLLM, "digest_poll_seconds": 0.1}, policy=_POLICY)
        await _knows_all(fleet, 1)
        prompts = hits = expected = 0
        for number in range(12):
            reply = await fleet.chat(_chat(number, turns=2), router=1)
            prompts, hits = prompts + reply.prompt_tokens, hits + reply.cached_tokens
            expected += reply.expected_tokens
        assert hits / prompts > 0.3
        assert expected == pytest.approx(hits, rel=0.1)
        metric = fleet.routers[0].metrics.render().decode()
        assert 'kvring_event_feed_connected{replica="r0"} 1.0' in metric
        await fleet.routers.pop().stop()


async def test_a_cleared_or_restarted_engine_is_credited_nothing(directory: Path) -> None:
    async with _engines(directory, 1) as fleet:
        (member,) = fleet.routers[0].fleet.replicas
        await fleet.chat(_chat(0))
        await _knows_all(fleet)
        before = member.epoch
        async with fleet.session.post(f"{fleet.replicas[0].url}/reset_prefix_cache") as response:
            assert response.status == 200
        await until(lambda: member.epoch != before and member.digest is not None and not member.digest.names)
        await fleet.chat(_chat(0))
        await _knows_all(fleet)
        before = member.epoch
        old = fleet.replicas[0]
        await old.stop()
        fleet.replicas[0] = await start(_options("r0", directory, port=old.port))
        await until(lambda: member.usable and member.epoch != before)
        reply = await fleet.chat(_chat(0))
        assert (reply.status, reply.cached_tokens) == (200, 0)
        await _knows_all(fleet)
        await fleet.replicas[0].stop()


async def test_a_sidecar_tells_what_the_engine_beside_it_holds(directory: Path) -> None:
    """One engine is decoded once, whoever asks: routers read the digests of its sidecar."""
    running = await start(_options("r0", directory))
    chain = {"models": {MODEL: {"tokenizer_directory": str(directory)}}}
    sidecar = Sidecar(RouterConfig.load(flags=chain), SidecarOptions(engine=running.url, port=0))
    await sidecar.start()
    port = int(sidecar.address.rsplit(":", 1)[1])
    events = {"source": "sidecar", "sidecar_port": port}
    fleet = {"replicas": [{"name": "r0", "url": running.url}], "engine": "vllm", "events": events}
    try:
        async with live_fleet(
            0, directory, routers=0, fleet={**fleet, "digest_poll_seconds": 0.1}, policy=_POLICY
        ) as client:
            client.replicas.append(running)
            await client.add_router(fleet={**fleet, "digest_poll_seconds": 0.1}, policy=_POLICY)
            for number in range(4):
                await client.chat(_chat(number))
            await _knows_all(client)
            reply = await client.chat(_chat(2, turns=2))
            assert reply.cached_tokens > 0
            assert reply.expected_tokens == pytest.approx(reply.cached_tokens, abs=32)
            await client.routers.pop().stop()
    finally:
        await sidecar.stop()
        await running.stop()
