"""The events of a live replica, as followers get them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import zmq

from replica.app import start
from replica.event_options import EventOptions
from replica.events import Changes, Cleared
from replica.options import ReplicaOptions
from replica.publisher import ZmqPublisher
from tests.replica.conftest import Client, Launch, echo_options
from tests.replica.followers import Follower, follow

EVENTS = {"enabled": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://127.0.0.1:0"}
PROMPT = list(range(40))


async def source_of(client: Client) -> dict[str, Any]:
    """Ask a replica where its events are."""
    sources = (await client.http.get("/kv_event_sources")).json()
    assert list(sources) == ["0"]
    source: dict[str, Any] = sources["0"]
    return source


async def joined(client: Client, follower: Follower) -> int:
    """Cause events until the follower gets some; return the last sequence it saw."""
    async with asyncio.timeout(5):
        while True:
            await client.http.post("/reset_prefix_cache")
            try:
                async with asyncio.timeout(0.05):
                    return (await follower.next())[0]
            except TimeoutError:
                continue


async def test_followers_find_the_sockets_and_get_what_is_stored_and_cleared(launch: Launch) -> None:
    client = await launch(events={**EVENTS, "topic": "kv@replica-1"})
    source = await source_of(client)
    assert source["topic"] == "kv@replica-1"
    assert source["endpoint"].startswith("tcp://*:")
    assert not source["endpoint"].endswith(":0")
    with follow(source, "kv@") as follower, follow(source, "other@") as deaf:
        await joined(client, follower)
        await client.complete(PROMPT, cache_salt="tenant")
        _, stored = await follower.until("BlockStored")
        assert stored["token_ids"] == PROMPT[:32]
        assert len(stored["block_hashes"]) == 2
        assert (stored["parent_block_hash"], stored["block_size"], stored["medium"]) == (None, 16, "GPU")
        assert (stored["lora_id"], stored["lora_name"], stored["group_idx"]) == (None, None, 0)
        assert stored["extra_keys"] == [["tenant"], None]
        # Nothing steps any more: it comes for the reset's own sake.
        await client.http.post("/reset_prefix_cache")
        assert (await follower.until("AllBlocksCleared"))[1] == {"type": "AllBlocksCleared"}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await deaf.next()


async def test_blocks_of_the_answer_follow_those_of_the_prompt(launch: Launch) -> None:
    client = await launch(events=EVENTS)
    with follow(await source_of(client)) as follower:
        await joined(client, follower)
        await client.complete(PROMPT, max_tokens=30)
        _, prompt = await follower.until("BlockStored")
        _, answer = await follower.until("BlockStored")
        assert answer["parent_block_hash"] == prompt["block_hashes"][-1]
        assert answer["token_ids"][:8] == PROMPT[32:]


async def test_evictions_are_told(launch: Launch) -> None:
    client = await launch(events=EVENTS, echo={"block_count": 4, "context_tokens": 64})
    with follow(await source_of(client)) as follower:
        await joined(client, follower)
        await client.complete(PROMPT)
        _, stored = await follower.until("BlockStored")
        await client.complete([7] * 60)
        _, removed = await follower.until("BlockRemoved")
        assert set(removed["block_hashes"]) == set(stored["block_hashes"])
        assert (removed["medium"], removed["group_idx"]) == ("GPU", 0)


async def test_under_load_events_tell_what_the_pool_holds(launch: Launch) -> None:
    client = await launch(events=EVENTS, echo={"block_count": 40, "context_tokens": 400})
    tasks = [
        asyncio.create_task(client.complete([number % 5] * (20 + 7 * number), max_tokens=60))
        for number in range(25)
    ]
    await client.until(lambda state: state["load"]["running"] > 3)
    for task in tasks[::6]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.http.post("/prefill", json={"tokens": [9] * 100})
    await client.idle()
    assert await client.metric("vllm:num_preemptions_total") > 0
    engine = client.replica.service.engine
    names = await asyncio.wrap_future(engine.look(lambda pool: set(pool.named)))
    wanted = {int.from_bytes(name[-8:], "big") for name in names}
    with follow(await source_of(client)) as follower:
        async with asyncio.timeout(5):
            while held_after(await follower.replay(0)) != wanted:
                pass


def held_after(batches: list[tuple[int, list[dict[str, Any]]]]) -> set[int]:
    """Return what a follower believes to be there."""
    held: set[int] = set()
    for _, events in batches:
        for event in events:
            if event["type"] == "BlockStored":
                held.update(event["block_hashes"])
            elif event["type"] == "BlockRemoved":
                held.difference_update(event["block_hashes"])
            else:
                held.clear()
    return held


async def test_what_was_missed_is_replayed_as_far_as_it_is_kept(launch: Launch) -> None:
    client = await launch(events={**EVENTS, "buffer_steps": 4})
    for number in range(6):
        await client.complete([number] * 40, max_tokens=1)
    with follow(await source_of(client)) as follower:
        await client.http.post("/reset_prefix_cache")
        last = 6
        # The reset's batch may be on its way from the engine still.
        async with asyncio.timeout(5):
            while not (batches := await follower.replay(0)) or batches[-1][0] != last:
                pass
        assert [sequence for sequence, _ in batches] == [3, 4, 5, 6]
        assert batches[-1][1] == [{"type": "AllBlocksCleared"}]
        assert batches[0][1][0]["token_ids"] == [3] * 32
        assert [sequence for sequence, _ in await follower.replay(5)] == [5, 6]
        assert await follower.replay(7) == []
        assert await follower.replay(2**64 - 1) == []


async def test_no_question_that_makes_no_sense_ends_the_replay(launch: Launch) -> None:
    client = await launch(events=EVENTS)
    await client.http.post("/reset_prefix_cache")
    with follow(await source_of(client)) as follower:
        for frames in ([b""], [b"", b"x"], [b"", b"", bytes(8)], [bytes(8)], [b"x" * 100_000]):
            await follower.send(frames)
        await joined(client, follower)
        assert (await follower.replay(0))[0][0] == 0


async def test_a_long_replay_comes_whole(launch: Launch) -> None:
    client = await launch(events=EVENTS)
    publisher = client.replica.server.events
    assert publisher is not None
    for number in range(5000):
        publisher.put(Changes(number, 0.0, [Cleared()]))
    with follow(await source_of(client)) as follower:
        await published(publisher, 5000)
        assert [sequence for sequence, _ in await follower.replay(0)] == list(range(5000))


async def test_what_is_dropped_shows_as_a_gap_and_is_counted() -> None:
    options = EventOptions(endpoint="tcp://*:0", replay_endpoint="tcp://*:0", high_water_mark=3)
    publisher = ZmqPublisher(options, 16)
    # It does not send yet, as one does not that is far behind.
    for number in range(5):
        publisher.put(Changes(number, 0.0, [Cleared()]))
    assert publisher.dropped == 2
    publisher.start()
    try:
        await published(publisher, 3)
        publisher.put(Changes(5, 0.0, [Cleared()]))
        with follow(publisher.to_json()) as follower:
            async with asyncio.timeout(5):
                while [sequence for sequence, _ in await follower.replay(0)] != [0, 1, 2, 5]:
                    pass
            assert [sequence for sequence, _ in await follower.replay(4)] == [5]
            assert [sequence for sequence, _ in await follower.replay(2)] == [2, 5]
    finally:
        publisher.close()
    publisher.put(Changes(6, 0.0, [Cleared()]))
    assert publisher.dropped == 3


async def test_a_concrete_host_is_connected_to(launch: Launch) -> None:
    context = zmq.asyncio.Context()
    sub = context.socket(zmq.SUB)
    sub.setsockopt_string(zmq.SUBSCRIBE, "")
    port = sub.bind_to_random_port("tcp://127.0.0.1")
    try:
        client = await launch(events={"enabled": True, "endpoint": f"tcp://127.0.0.1:{port}"})
        source = await source_of(client)
        assert source == {"endpoint": f"tcp://127.0.0.1:{port}", "replay_endpoint": None, "topic": ""}
        async with asyncio.timeout(5):
            while not await sub.poll(20):
                await client.http.post("/reset_prefix_cache")
    finally:
        context.destroy(linger=0)


async def test_files_serve_as_sockets_too(launch: Launch, tmp_path: Path) -> None:
    client = await launch(events={"enabled": True, "endpoint": f"ipc://{tmp_path}/events"})
    source = await source_of(client)
    with follow(source) as follower:
        await joined(client, follower)


async def test_a_port_that_is_taken_stops_the_start(launch: Launch) -> None:
    client = await launch(events=EVENTS)
    taken = (await source_of(client))["endpoint"]
    for events in ({"endpoint": taken}, {"endpoint": "tcp://*:0", "replay_endpoint": taken}):
        options = ReplicaOptions.load(flags=echo_options(events={"enabled": True, **events}))
        with pytest.raises(OSError, match="events cannot be published at"):
            await start(options)


async def test_without_events_there_is_no_source(launch: Launch) -> None:
    client = await launch()
    assert (await client.http.get("/kv_event_sources")).json() == {}
    assert client.replica.server.events is None


async def test_batches_are_counted(launch: Launch) -> None:
    client = await launch(events=EVENTS)
    for _ in range(3):
        await client.http.post("/reset_prefix_cache")
    publisher = client.replica.server.events
    assert publisher is not None
    await published(publisher, 3)
    assert await total(client, "kvring_replica_events_total") == 3
    assert await total(client, "kvring_replica_events_dropped_total") == 0


async def published(publisher: ZmqPublisher, count: int) -> None:
    """Wait until so many batches are sent."""
    async with asyncio.timeout(5):
        while True:
            if publisher.published >= count:
                return
            await asyncio.sleep(0.002)


async def total(client: Client, name: str) -> float:
    """Read a sample without labels."""
    for line in (await client.http.get("/metrics")).text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"there is no metric {name}")
