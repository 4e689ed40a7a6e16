"""Streams whose replica is killed, with the echo runner: one answer, or an error, and never half of one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from tests.integration.dying import DyingFleet, Seen, dying_fleet
from tests.router.scripted import until

ECHO: dict[str, Any] = {
    "runner": "echo",
    "model_directory": "",
    "echo": {
        "filler": "Ein Bär 😀 schläft: 漢字! ",
        "decode_seconds": 0.01,
        "prefill": {"base_seconds": 0.01},
    },
}
MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
BODY: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 24}
LONG: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 100}


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[DyingFleet]:
    async with dying_fleet(tmp_path, ECHO, 3) as fleet:
        yield fleet


async def test_the_client_sees_one_answer_wherever_its_replica_dies(fleet: DyingFleet) -> None:
    random = Random(3)
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", BODY),
        ("/v1/completions", {"prompt": "x", "max_tokens": 20}),
        ("/v1/chat/completions", {**BODY, "stop": ["schläft: 漢字?", "字! Ein B"], "stream_options": None}),
        ("/v1/chat/completions", {**BODY, "seed": 5, "stream_options": {"include_usage": False}}),
    ]
    for path, body in requests:
        whole = await fleet.stream(body, path)
        for characters in (0, random.randint(1, len(whole.text) // 2)):
            seen = await fleet.killed_at(characters, body, path)
            assert seen.whole() == whole.whole()
            assert seen.replica
            fleet.born(seen.replica)
            await fleet.ready(3)
    # On a machine that stands still for a while, an answer may have come already.
    assert fleet.metric("continued") >= len(requests)
    assert fleet.metric("failed") == 0


async def test_who_goes_on_may_die_too(fleet: DyingFleet) -> None:
    undisturbed = (await fleet.stream(BODY)).whole()
    seen, deaths = Seen(), [3, 12]
    async for count in fleet.events(BODY, "/v1/chat/completions", seen):
        if deaths and count >= deaths[0]:
            deaths.pop(0)
            busy = {one.name for one in fleet.router.fleet.replicas if one.load.in_flight}
            (victim,) = busy & fleet.alive
            fleet.kill(victim)
    assert not deaths
    assert seen.whole() == undisturbed
    assert all(not one.load.in_flight for one in fleet.router.fleet.replicas)


async def test_who_warms_and_has_its_share_of_new_requests_goes_on_all_the_same(tmp_path: Path) -> None:
    async with dying_fleet(tmp_path, ECHO, 2, {"fleet": {"warming_seconds": 600}}) as fleet:
        undisturbed = await fleet.stream(LONG)
        warm = fleet.router.fleet.by_name("r0")
        assert warm is not None
        warm.warm_at = 0.0
        fleet.kill("r1")
        await until(lambda: not fleet.usable("r1"))
        fleet.born("r1")
        await fleet.ready(2)
        warming = fleet.router.fleet.by_name("r1")
        assert warming is not None
        assert warming.warms_until(monotonic()) > 0
        lease = warming.load.open(0.0, monotonic(), 1)
        seen = await fleet.killed_at(4, LONG)
        warming.load.close(lease)
        assert seen.replica == "r0"
        assert seen.whole() == undisturbed.whole()


async def test_where_nobody_is_left_the_client_is_told(fleet: DyingFleet) -> None:
    def kill_all(seen: Seen) -> None:
        for name in {"r0", "r1", "r2"} - {seen.replica}:
            fleet.kill(name)

    seen = await fleet.killed_at(4, LONG, then=kill_all)
    assert seen.status == 200
    assert not seen.clean
    assert seen.error is not None
    assert seen.error["code"] == "replica_lost"
    assert b"[DONE]" not in b"".join(seen.events)
    assert fleet.metric("failed") == 1


async def test_what_cannot_be_exact_ends_in_an_error(fleet: DyingFleet) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    for path, fields in (
        ("/v1/completions", {"prompt": ["x", "y"], "max_tokens": 80}),
        ("/v1/chat/completions", {**LONG, "return_token_ids": True}),
        ("/v1/chat/completions", {**LONG, "tools": tools}),
    ):
        seen = await fleet.killed_at(4, fields, path)
        assert not seen.clean
        assert seen.error is not None
        assert seen.error["code"] == "replica_lost"
        fleet.born(seen.replica)
        await fleet.ready(2)
    assert fleet.metric("continued") == 0
