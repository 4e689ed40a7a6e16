"""A replica whose grace is over ends its streams: others go on with them, and clients never know."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from replica.app import RunningReplica
from tests.integration.fleets import LiveFleet, live_fleet

_BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Tell me of the sea, of ships and of storms. " * 4}],
    "max_tokens": 48,
    "stream": True,
    "stream_options": {"include_usage": True},
}


async def _told(fleet: LiveFleet, stops_after: int | None = None) -> tuple[str, dict[str, Any], bytes]:
    """Stream an answer, and have its replica stop behind so many pieces; return text, usage and bytes."""
    stopping: asyncio.Task[None] | None = None
    received = b""
    url = f"{fleet.routers[0].address}/v1/chat/completions"
    async with fleet.session.post(url, json=_BODY) as response:
        served_by = response.headers["x-kvring-replica"]
        pieces = 0
        async for piece in response.content.iter_any():
            received += piece
            pieces += 1
            if pieces == stops_after:
                (replica,) = [one for one in fleet.replicas if one.options.name == served_by]
                stopping = asyncio.create_task(_end(replica))
    if stopping is not None:
        await stopping
    *events, done = received.decode().strip().split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    text = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    assert len({chunk["id"] for chunk in chunks}) == 1
    return text, chunks[-1]["usage"], received


async def _end(replica: RunningReplica) -> None:
    """End as on SIGTERM."""
    await replica.drain()
    await replica.stop()


async def test_a_stream_outlives_the_grace_of_its_replica() -> None:
    slow = {"echo": {"decode_seconds": 0.02}, "drain_seconds": 0}
    async with live_fleet(3, replica=slow) as fleet, asyncio.timeout(40):
        undisturbed, usage, _ = await _told(fleet)
        text, disturbed_usage, received = await _told(fleet, stops_after=12)
        assert text == undisturbed
        assert disturbed_usage["completion_tokens"] == usage["completion_tokens"] == 48
        assert b"error" not in received
        metrics = fleet.routers[0].metrics
        assert metrics.of(metrics.continued, "continued").value == 1
