"""Who is let in: a full, failed or leaving replica says so in a way that sends the request elsewhere."""

from __future__ import annotations

import asyncio

import httpx

from tests.replica.conftest import Client, Launch

SLOW = {"prefill": {"base_seconds": 0.15, "per_token_seconds": 1e-7, "per_token_context_seconds": 0}}


def refused(response: httpx.Response, code: str) -> None:
    assert response.status_code == 503
    assert response.json()["error"]["code"] == code
    assert response.json()["error"]["type"] == "overloaded_error"
    assert 1 <= int(response.headers["retry-after"]) <= 5


async def fill(client: Client, requests: int) -> list[asyncio.Task[httpx.Response]]:
    """Start requests and wait until they are in."""
    tasks = [asyncio.create_task(client.complete([n], max_tokens=400)) for n in range(requests)]
    await client.until(lambda state: state["load"]["running"] + state["load"]["waiting"] == requests)
    return tasks


async def test_more_than_run_and_wait_are_refused_and_the_rest_is_served(launch: Launch) -> None:
    client = await launch(scheduler={"max_running": 2, "max_waiting": 3})
    tasks = await fill(client, 5)
    refused(await client.complete([9]), "queue_full")
    refused(await client.chat("x", stream=True), "queue_full")
    responses = await asyncio.gather(*tasks)
    assert [response.status_code for response in responses] == [200] * 5
    assert (await client.complete([9])).status_code == 200
    assert await client.metric('kvring_replica_requests_total{outcome="refused"}') == 2


async def test_a_flood_is_served_or_refused_and_nothing_else(launch: Launch) -> None:
    client = await launch(scheduler={"max_running": 4, "max_waiting": 8})
    responses = await asyncio.gather(*(client.complete([n], max_tokens=20) for n in range(100)))
    statuses = [response.status_code for response in responses]
    assert set(statuses) == {200, 503}
    assert statuses.count(200) >= 12
    for response in responses:
        if response.status_code == 503:
            refused(response, "queue_full")
    state = await client.idle()
    assert state["free_blocks"] == state["block_count"]


async def test_a_request_larger_than_the_queue_is_served_when_it_is_alone(launch: Launch) -> None:
    client = await launch(scheduler={"max_running": 1, "max_waiting": 1})
    response = await client.complete(["a", "b", "c", "d"])
    assert [choice["text"] for choice in response.json()["choices"]] == ["The quick brown "] * 4


async def test_a_fault_of_the_clients_is_told_even_when_full(launch: Launch) -> None:
    client = await launch(scheduler={"max_running": 1, "max_waiting": 0})
    tasks = await fill(client, 1)
    assert (await client.complete([])).status_code == 400
    assert (await client.complete("x", model="other")).status_code == 404
    await asyncio.gather(*tasks)


async def test_the_load_rides_on_every_inference_answer_that_asks(launch: Launch) -> None:
    client = await launch(scheduler={"max_running": 1, "max_waiting": 0}, echo=SLOW)
    asks = {"endpoint-load-metrics-format": "text"}
    body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 1}
    one = asyncio.create_task(client.http.post("/v1/completions", json=body, headers=asks))
    await client.until(lambda state: state["load"]["running"] == 1)
    full = await client.http.post("/v1/completions", json=body, headers=asks)
    assert full.status_code == 503
    assert "num_requests_running=1" in full.headers["endpoint-load-metrics"]
    assert "endpoint-load-metrics" in (await one).headers
    streamed = await client.http.post("/v1/completions", json={**body, "stream": True}, headers=asks)
    assert "named_metrics.work_s=" in streamed.headers["endpoint-load-metrics"]
    assert "endpoint-load-metrics" not in (await client.complete([1])).headers
    assert "endpoint-load-metrics" not in (await client.http.get("/health", headers=asks)).headers
