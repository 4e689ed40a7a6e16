"""A client that goes away ends its request in every phase, and nothing of it stays."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from tests.replica.conftest import Client, Launch

LONG = {"prefill": {"base_seconds": 0.25, "per_token_seconds": 1e-7, "per_token_context_seconds": 0}}


async def connect(client: Client, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a completion request on a connection of its own."""
    reader, writer = await asyncio.open_connection(client.replica.host, client.replica.port)
    writer.write(request_of(body))
    await writer.drain()
    return reader, writer


def request_of(body: dict[str, Any]) -> bytes:
    """Return the bytes of a completion request."""
    raw = json.dumps({"model": "m", "max_tokens": 20_000, **body}).encode()
    return f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def baseline(client: Client) -> None:
    """Check that nothing runs, waits, holds blocks or is booked any more."""
    state = await client.until(
        lambda state: state["free_blocks"] == state["block_count"] and state["load"]["waiting"] == 0
    )
    assert state["load"]["running"] == 0
    assert state["load"]["work_seconds"] == 0
    service = client.replica.service
    assert service.leased == 0
    assert service._leases == {}
    steps = await client.metric("kvring_replica_steps_total")
    assert await client.metric("kvring_replica_steps_total") == steps


@pytest.mark.parametrize("stream", [False, True])
async def test_while_decoding(launch: Launch, stream: bool) -> None:
    client = await launch()
    _, writer = await connect(client, {"prompt": list(range(100)), "stream": stream})
    await client.until(lambda state: state["load"]["running"] == 1 and state["load"]["work_seconds"] == 0)
    await hang_up(writer)
    await baseline(client)
    assert await client.metric('kvring_replica_requests_total{outcome="client_closed"}') == 1
    assert await client.metric("vllm:generation_tokens_total") < 20_000


@pytest.mark.parametrize("stream", [False, True])
async def test_during_prefill(launch: Launch, stream: bool) -> None:
    client = await launch(echo=LONG)
    _, writer = await connect(client, {"prompt": list(range(100)), "stream": stream})
    await client.until(lambda state: state["load"]["running"] == 1)
    await hang_up(writer)
    await baseline(client)
    # The running step is finished, and no other one is started for nobody.
    assert await client.metric("kvring_replica_steps_total") == 1
    assert await client.metric("vllm:generation_tokens_total") <= 1


@pytest.mark.parametrize("stream", [False, True])
async def test_while_queued(launch: Launch, stream: bool) -> None:
    client = await launch(scheduler={"max_running": 1})
    _, first = await connect(client, {"prompt": [1, 2, 3]})
    await client.until(lambda state: state["load"]["running"] == 1)
    _, second = await connect(client, {"prompt": list(range(64)), "stream": stream})
    await client.until(lambda state: state["load"]["waiting"] == 1)
    await hang_up(second)
    await client.until(lambda state: state["load"]["waiting"] == 0)
    assert await client.metric("vllm:prefix_cache_queries_total") == 3
    await hang_up(first)
    await baseline(client)
    assert await client.metric("kvring_replica_prefill_tokens_total") == 3


async def test_all_prompts_of_a_request(launch: Launch) -> None:
    client = await launch()
    _, writer = await connect(client, {"prompt": [[n] * 30 for n in range(4)], "stream": True})
    await client.until(lambda state: state["load"]["running"] == 4)
    await hang_up(writer)
    await baseline(client)


async def test_while_the_body_is_still_coming(launch: Launch) -> None:
    client = await launch()
    _, writer = await asyncio.open_connection(client.replica.host, client.replica.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
    await writer.drain()
    await hang_up(writer)
    await baseline(client)


async def test_a_storm_of_aborts_leaves_nothing(launch: Launch) -> None:
    client = await launch(scheduler={"max_running": 4}, echo={"block_count": 40, "context_tokens": 400})

    async def one(number: int) -> None:
        body = {"prompt": list(range(number % 7 * 16 + 5)), "stream": number % 2 == 0, "max_tokens": 200}
        _, writer = await connect(client, body)
        await asyncio.sleep(number % 5 * 0.004)
        await hang_up(writer)

    for start in range(0, 120, 30):
        await asyncio.gather(*(one(number) for number in range(start, start + 30)))
    await baseline(client)
    assert (await client.complete([1, 2, 3])).status_code == 200


async def test_a_client_that_does_not_read_is_cut_off(launch: Launch) -> None:
    client = await launch(limits={"write_seconds": 0.2}, echo={"decode_seconds": 0, "block_count": 100_000})
    with socket.socket() as deaf:
        # Small, so that the buffers between the two are soon full.
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(deaf, (client.replica.host, client.replica.port))
        await loop.sock_sendall(deaf, request_of({"prompt": [[n] for n in range(60)], "stream": True}))
        await client.until(lambda state: state["load"]["running"] > 0)
        await baseline(client)
    assert await client.metric('kvring_replica_requests_total{outcome="client_closed"}') == 1
