"""Prewarms: computed into the cache for nobody yet, and never in the way of who is there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from replica.sequence import Finish
from tests.replica.conftest import Client, Launch
from tests.replica.drives import BLOCK, Drive

PREFIX = list(range(8 * BLOCK))
# A token a millisecond.
SLOW = {"prefill": {"base_seconds": 0.0, "per_token_seconds": 1e-3, "per_token_context_seconds": 0.0}}


def test_a_prewarm_is_computed_whole_and_found_later() -> None:
    drive = Drive(max_batch_tokens=3 * BLOCK)
    id = drive.add(PREFIX, prewarm=True)
    steps = 0
    while (step := drive.step()) is not None:
        steps += 1
        assert not step.batch.works[0].sample
    assert steps == 3
    assert (drive.finished[id], drive.answers[id]) == (Finish.COMPUTED, [])
    assert drive.scheduler.ids() == ()
    assert drive.pool.free_count == drive.pool.block_count
    assert drive.run([*PREFIX, 1])[0] == len(PREFIX)


def test_it_counts_apart() -> None:
    drive = Drive()
    drive.add(PREFIX, prewarm=True)
    drive.finish()
    counts = drive.scheduler.counts
    assert counts.prewarm_tokens == len(PREFIX)
    assert counts.prefix_queries == counts.prefix_hits == counts.prefill_tokens == counts.prompt_tokens == 0
    drive.add([*PREFIX, *range(BLOCK)], prewarm=True)
    drive.finish()
    # What was there already is not computed again.
    assert counts.prewarm_tokens == len(PREFIX) + BLOCK
    assert drive.load.seconds() == 0
    assert all(block.hits == 0 for block in drive.pool.named.values())


def test_requests_go_first() -> None:
    drive = Drive(max_batch_tokens=2 * BLOCK)
    prewarm = drive.add(PREFIX, prewarm=True)
    drive.step()
    request = drive.add([500 + at for at in range(4 * BLOCK)], max_tokens=1)
    step = drive.step()
    assert step
    assert [sequence.id for sequence in step.sequences] == [request]
    drive.finish()
    assert drive.finished == {request: Finish.LENGTH, prewarm: Finish.COMPUTED}


def test_it_shares_steps_with_those_that_decode() -> None:
    drive = Drive(max_batch_tokens=2 * BLOCK)
    request = drive.add([1, 2, 3], max_tokens=9)
    drive.step()
    prewarm = drive.add(PREFIX, prewarm=True)
    step = drive.step()
    assert step
    assert [
        (one.id, len(work.token_ids)) for one, work in zip(step.sequences, step.batch.works, strict=True)
    ] == [
        (request, 1),
        (prewarm, 2 * BLOCK - 1),
    ]


def test_its_blocks_go_to_a_request_that_starts() -> None:
    drive = Drive(block_count=10, max_batch_tokens=2 * BLOCK)
    prewarm = drive.add(PREFIX, prewarm=True)
    drive.step()
    request = drive.add([*PREFIX[: 2 * BLOCK], *range(500, 500 + 6 * BLOCK)], max_tokens=1)
    step = drive.step()
    assert step
    assert drive.finished == {prewarm: Finish.ABORT}
    drive.finish()
    # What it had computed serves.
    assert drive.sequences[request].cached_tokens == 2 * BLOCK


def test_its_blocks_go_to_a_request_that_grows() -> None:
    drive = Drive(block_count=10, max_batch_tokens=2)
    request = drive.add([1, 2], max_tokens=8 * BLOCK)
    drive.step()
    prewarm = drive.add(PREFIX, prewarm=True)
    drive.finish()
    assert drive.finished == {prewarm: Finish.ABORT, request: Finish.LENGTH}
    assert drive.sequences[request].preemptions == 0


def test_it_rests_while_a_request_waits() -> None:
    drive = Drive(max_running=1)
    first = drive.add([1, 2, 3], max_tokens=5)
    drive.step()
    second = drive.add([4, 5, 6], max_tokens=5)
    prewarm = drive.add(PREFIX, prewarm=True)
    while second not in drive.finished:
        step = drive.step()
        assert step
        if first not in drive.finished:
            assert [sequence.id for sequence in step.sequences] == [first]
    drive.finish()
    assert drive.finished[prewarm] == Finish.COMPUTED


def test_a_slot_is_no_matter() -> None:
    drive = Drive(max_running=1, max_batch_tokens=2 * BLOCK)
    prewarm = drive.add(PREFIX, prewarm=True)
    drive.step()
    request = drive.add([1, 2, 3], max_tokens=2)
    drive.step()
    assert drive.answers[request]
    drive.finish()
    assert drive.finished[prewarm] == Finish.COMPUTED


async def prefill(client: Client, tokens: object, **fields: Any) -> Any:
    """Post a prefill."""
    return await client.http.post("/prefill", json={"tokens": tokens, **fields})


async def test_whole_blocks_are_computed_once(launch: Launch) -> None:
    client = await launch()
    assert (await prefill(client, list(range(100)))).json() == {"computed_tokens": 96, "cached_tokens": 0}
    assert (await prefill(client, list(range(100)))).json() == {"computed_tokens": 0, "cached_tokens": 96}
    assert (await prefill(client, list(range(130)))).json() == {"computed_tokens": 32, "cached_tokens": 96}
    assert (await prefill(client, [1] * 15)).json() == {"computed_tokens": 0, "cached_tokens": 0}
    assert (await prefill(client, list(range(100)), salt="s")).json()["computed_tokens"] == 96
    answer = await client.complete([*range(96), 1])
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    assert await client.metric("vllm:prefix_cache_queries_total") == 97
    assert await client.metric("vllm:prefix_cache_hits_total") == 96
    assert await client.metric("vllm:prompt_tokens_total") == 97
    assert await client.metric("kvring_replica_prewarm_tokens_total") == 96 + 32 + 96
    assert 'vllm:request_success_total{engine="0",finished_reason="computed"' not in (
        (await client.http.get("/metrics")).text
    )
    state = await client.idle()
    assert state["free_blocks"] == state["block_count"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tokens": []},
        {"tokens": "x"},
        {"tokens": [1.5]},
        {"tokens": [-1]},
        {"tokens": [2**32]},
        {"tokens": [[1]]},
        {"tokens": [1], "salt": 5},
        {"tokens": [1], "salt": ""},
        {"tokens": [1], "salt": "x" * 129},
        {"tokens": [1] * 65},
    ],
)
async def test_what_is_no_prefix_is_refused(launch: Launch, body: dict[str, Any]) -> None:
    client = await launch(echo={"context_tokens": 64})
    response = await client.http.post("/prefill", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] in ("tokens", "salt")


async def test_a_prefix_may_fill_the_context(launch: Launch) -> None:
    client = await launch(echo={"context_tokens": 64, "block_count": 4})
    assert (await prefill(client, [1] * 64)).json() == {"computed_tokens": 64, "cached_tokens": 0}


async def test_it_is_refused_where_requests_wait(launch: Launch) -> None:
    client = await launch(echo=SLOW, scheduler={"max_running": 1})
    tasks = [asyncio.create_task(client.complete([at] * 300, max_tokens=1)) for at in range(2)]
    await client.until(lambda state: state["load"]["waiting"] == 1)
    response = await prefill(client, list(range(32)))
    assert (response.status_code, response.json()["error"]["code"]) == (503, "busy")
    assert response.headers["retry-after"] == "1"
    for task in tasks:
        assert (await task).status_code == 200


async def test_it_is_no_load_that_anybody_waits_for(launch: Launch) -> None:
    client = await launch(echo=SLOW, scheduler={"max_batch_tokens": 64})
    task = asyncio.create_task(prefill(client, list(range(320))))
    await client.until(lambda state: state["load"]["kv_usage"] > 0)
    state = await client.state()
    assert (state["load"]["running"], state["load"]["waiting"], state["load"]["work_seconds"]) == (0, 0, 0)
    # It goes between the prewarm's steps.
    await client.complete([7] * 32, max_tokens=1)
    assert not task.done()
    assert (await task).json() == {"computed_tokens": 320, "cached_tokens": 0}


async def test_only_so_many_wait_their_turn(launch: Launch) -> None:
    client = await launch(echo=SLOW)
    tasks = [asyncio.create_task(prefill(client, [at] * 64)) for at in range(12)]
    codes = [(await task).status_code for task in tasks]
    assert codes.count(200) == 8
    assert codes.count(503) == 4


async def test_whoever_leaves_ends_it(launch: Launch) -> None:
    client = await launch(echo=SLOW, scheduler={"max_batch_tokens": 64})
    # Half a minute of work, if it went on.
    task = asyncio.create_task(prefill(client, list(range(30_000))))
    await client.until(lambda state: state["load"]["kv_usage"] > 0)
    task.cancel()
    await client.until(lambda state: state["load"]["kv_usage"] == 0)


async def test_a_drain_refuses_it_and_ends_it(launch: Launch) -> None:
    client = await launch(echo=SLOW, scheduler={"max_batch_tokens": 64}, linger_seconds=0.5)
    task = asyncio.create_task(prefill(client, list(range(3200))))
    await client.until(lambda state: state["load"]["kv_usage"] > 0)
    draining = asyncio.create_task(client.replica.drain())
    response = await task
    assert (response.status_code, response.json()["error"]["code"]) == (503, "busy")
    late = await prefill(client, list(range(32)))
    assert (late.status_code, late.json()["error"]["code"]) == (503, "shutting_down")
    assert late.headers["connection"] == "close"
    await draining


async def test_without_a_cache_there_is_nowhere_to_keep_it(launch: Launch) -> None:
    client = await launch(enable_prefix_caching=False)
    response = await prefill(client, list(range(32)))
    assert (response.status_code, response.json()["error"]["code"]) == (409, "caching_off")
