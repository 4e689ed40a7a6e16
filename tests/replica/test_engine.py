"""The engine when its runner fails: those affected are told, the others go on, and a lasting fault shows."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from replica.batch import Batch
from replica.engine import FAILURES_UNTIL_BROKEN
from replica.runner.echo import EchoRunner
from tests.replica.conftest import Client, Launch
from tests.replica.followers import follow

POISON = 666


class FragileRunner(EchoRunner):
    """Fails on any batch with the poisoned token."""

    def run(self, batch: Batch) -> list[int | None]:
        """See replica.batch.Runner."""
        if any(POISON in work.token_ids for work in batch.works):
            raise FloatingPointError("poisoned")
        return super().run(batch)


@pytest.fixture
async def fragile(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr("replica.loading.EchoRunner", FragileRunner)
    logging.getLogger("replica.engine").setLevel(logging.CRITICAL)
    return await launch()


async def test_a_failed_batch_is_500_and_frees_its_blocks(fragile: Client) -> None:
    response = await fragile.complete([POISON] * 40)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_error"
    assert response.json()["error"]["type"] == "server_error"
    state = await fragile.until(lambda state: state["free_blocks"] == state["block_count"])
    assert state["load"]["work_seconds"] == 0
    assert (await fragile.complete([1, 2, 3])).status_code == 200
    assert (await fragile.http.get("/health")).status_code == 200
    assert await fragile.metric('kvring_replica_requests_total{outcome="error"}') == 1


async def test_nothing_of_a_failed_batch_is_found_later(fragile: Client) -> None:
    for _ in range(2):
        await fragile.complete([*range(100), POISON])
    response = await fragile.complete(list(range(100)))
    assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_what_a_failed_batch_evicted_is_told(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replica.loading.EchoRunner", FragileRunner)
    logging.getLogger("replica.engine").setLevel(logging.CRITICAL)
    client = await launch(
        events={"enabled": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"},
        echo={"block_count": 4, "context_tokens": 64},
    )
    with follow((await client.http.get("/kv_event_sources")).json()["0"]) as follower:
        await client.complete([1] * 40, max_tokens=1)
        await client.complete([POISON] * 60, max_tokens=1)
        async with asyncio.timeout(5):
            while len(batches := await follower.replay(0)) < 2:
                pass
    (_, [stored]), (_, [removed]) = batches
    assert set(removed["block_hashes"]) == set(stored["block_hashes"])


async def test_whoever_does_not_wait_for_a_reset_or_a_look_harms_nobody(launch: Launch) -> None:
    client = await launch(echo={"decode_seconds": 0.2})
    task = asyncio.create_task(client.complete([1], max_tokens=2))
    await client.until(lambda state: state["load"]["running"] == 1)
    engine = client.replica.service.engine
    assert engine.reset().cancel()
    assert engine.look(lambda pool: pool.free_count).cancel()
    assert (await task).status_code == 200
    assert await asyncio.wrap_future(engine.look(lambda pool: pool.free_count)) == 4096
    with pytest.raises(ZeroDivisionError):
        await asyncio.wrap_future(engine.look(lambda pool: 1 // 0))
    assert (await client.complete([1])).status_code == 200


async def test_a_failed_stream_ends_with_an_error_event(fragile: Client) -> None:
    response = await fragile.complete([POISON], stream=True)
    assert response.status_code == 200
    events = response.text.split("\n\n")
    assert '"code":"engine_error"' in events[-3]
    assert events[-2:] == ["data: [DONE]", ""]


async def test_a_lasting_fault_shows_in_health_and_refuses(fragile: Client) -> None:
    for _ in range(FAILURES_UNTIL_BROKEN):
        assert (await fragile.http.get("/health")).status_code == 200
        assert (await fragile.complete([POISON])).status_code == 500
    health = await fragile.http.get("/health")
    assert (health.status_code, health.json()) == (503, {"status": "broken"})
    assert not (await fragile.state())["ready"]
    response = await fragile.complete([1])
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_failed"


async def test_a_fault_of_the_engine_itself_ends_all_and_shows(
    fragile: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = asyncio.create_task(fragile.complete([1], max_tokens=2000))
    await fragile.until(lambda state: state["load"]["running"] == 1)

    def fail(*_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("replica.scheduler.Scheduler.complete", fail)
    assert (await running).status_code == 500
    assert (await fragile.http.get("/health")).status_code == 503
    assert (await fragile.complete([1])).status_code == 503
    assert fragile.replica.service.leased == 0
    assert not await asyncio.wrap_future(fragile.replica.service.engine.reset())
