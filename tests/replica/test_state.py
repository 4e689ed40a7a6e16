"""What a replica tells of itself, at any moment."""

from __future__ import annotations

import asyncio

import pytest

from router.wire.report import LoadReport, PrefillCost, ReplicaState
from tests.replica.conftest import Client, Launch

# A token a millisecond, so that what is left can be reckoned.
PER_TOKEN = {"base_seconds": 0.0, "per_token_seconds": 1e-3, "per_token_context_seconds": 0.0}


async def test_the_state_reads_back_as_what_it_is(launch: Launch) -> None:
    client = await launch(echo={"prefill": {"base_seconds": 0.25}, "block_count": 50, "context_tokens": 700})
    state = ReplicaState.from_json(await client.state())
    assert state.name == "replica-1"
    assert state.models == ("m",)
    assert state.ready
    assert not state.draining
    assert state.prefill == PrefillCost(0.25, 1e-4, 3e-9)
    assert (state.context_tokens, state.block_count, state.free_blocks) == (700, 50, 50)
    assert state.load.work_seconds == 0
    later = ReplicaState.from_json(await client.state())
    assert later.load.sequence > state.load.sequence
    # Since it could serve, which is not long.
    assert 0 <= state.serving_seconds < later.serving_seconds < 3600


async def test_state_and_health_answer_in_the_middle_of_a_step(launch: Launch) -> None:
    client = await launch(echo={"prefill": PER_TOKEN}, scheduler={"max_batch_tokens": 2000})
    task = asyncio.create_task(client.complete(list(range(1000)), max_tokens=1))
    await client.until(lambda state: state["load"]["running"] == 1)
    seen = []
    while not task.done():
        assert (await client.http.get("/health")).status_code == 200
        state = await client.state()
        if await client.metric("kvring_replica_steps_total") == 0:
            seen.append(state["load"])
    # All within the one step: the work wears down while it runs.
    assert len(seen) > 2
    work = [load["work_seconds"] for load in seen]
    assert work == sorted(work, reverse=True)
    assert 0 <= work[-1] < work[0] <= 1.0
    assert all(load["kv_usage"] == pytest.approx(63 / 4096) for load in seen)
    sequences = [load["sequence"] for load in seen]
    assert sequences == sorted(set(sequences))
    assert (await task).status_code == 200


async def queued(client: Client) -> LoadReport:
    return ReplicaState.from_json(await client.state()).load


async def test_queued_work_counts_the_hits_that_requests_ahead_will_bring(launch: Launch) -> None:
    client = await launch(echo={"prefill": PER_TOKEN}, scheduler={"max_running": 1})
    prompt = list(range(320))
    # It is computed while the others come.
    first = asyncio.create_task(client.complete([7] * 1500, max_tokens=1))
    await client.until(lambda state: state["load"]["running"] == 1)
    before = (await queued(client)).work_seconds
    second = asyncio.create_task(client.complete(prompt, max_tokens=1))
    await client.until(lambda state: state["load"]["waiting"] == 1)
    third = asyncio.create_task(client.complete([*prompt, 1, 2], max_tokens=1))
    load = ReplicaState.from_json(await client.until(lambda state: state["load"]["waiting"] == 2)).load
    # 320 tokens of the second and only two of the third, less what the first has done meanwhile.
    assert 0.322 - 1e-6 <= load.work_seconds <= before + 0.322 + 1e-6
    for task in (first, second, third):
        assert (await task).status_code == 200
    assert (await third).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 320
    assert (await queued(client)).work_seconds == 0


async def test_the_reported_cost_follows_what_prefills_take(launch: Launch) -> None:
    client = await launch(
        prefill={"base_seconds": 0.01, "per_token_seconds": 1e-5, "per_token_context_seconds": 0.0},
        echo={"prefill": {"base_seconds": 0.0, "per_token_seconds": 1e-4, "per_token_context_seconds": 0.0}},
    )
    start = ReplicaState.from_json(await client.state()).prefill
    for base in range(12):
        await client.complete([base * 1000 + at for at in range(500)], max_tokens=1)
    learned = ReplicaState.from_json(await client.state()).prefill
    true = 0.05
    assert abs(learned.seconds(500, 0) - true) < abs(start.seconds(500, 0) - true) / 2


async def test_metrics_have_vllms_names(launch: Launch) -> None:
    client = await launch()
    await client.chat("hello " * 40)
    await client.chat("hello " * 40)
    text = (await client.http.get("/metrics")).text
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:time_to_first_token_seconds_bucket",
        "kvring_replica_work_seconds",
    ):
        assert f"\n{name}{{" in text
    assert 'block_size="16"' in text
    assert 'num_gpu_blocks="4096"' in text
    assert await client.metric("vllm:generation_tokens_total") == 8
    assert await client.metric("vllm:time_to_first_token_seconds_count") == 2
    assert await client.metric("vllm:prefix_cache_hits_total") > 0


async def test_draining_shows_in_the_metrics(launch: Launch) -> None:
    client = await launch()
    assert "\nkvring_replica_draining 0.0\n" in (await client.http.get("/metrics")).text
    await client.replica.drain()
    assert "\nkvring_replica_draining 1.0\n" in (await client.http.get("/metrics")).text


async def test_requests_from_outside_make_no_new_series(launch: Launch) -> None:
    client = await launch()
    for outcome in ("error", "ok"):
        assert await client.metric(f'kvring_replica_requests_total{{outcome="{outcome}"}}') == 0
    await client.chat("x")
    before = (await client.http.get("/metrics")).text.count("\n")
    for number in range(50):
        await client.chat("x", model=f"model-{number}", cache_salt=f"salt-{number}")
        await client.http.get(f"/path-{number}")
    assert (await client.http.get("/metrics")).text.count("\n") == before
