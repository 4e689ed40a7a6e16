"""Loading, draining, stopping: nobody is cut who need not be, and everybody is told."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from replica.app import start
from replica.options import ReplicaOptions
from replica.runner.echo import EchoRunner
from tests.replica.conftest import Client, Launch, echo_options
from tests.replica.followers import follow

LONG = {"decode_seconds": 0.005}


async def stream_text(client: Client, tokens: int) -> str:
    """Stream a completion; return all that came."""
    body = {"model": "m", "prompt": [1, 2], "max_tokens": tokens, "stream": True}
    async with client.http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        return (await response.aread()).decode()


class SlowRunner(EchoRunner):
    """Is loaded once it is let."""

    let = threading.Event()

    def __init__(self, *given: Any, **named: Any) -> None:
        self.let.wait(10)
        super().__init__(*given, **named)


async def test_while_loading_the_port_is_open_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replica.loading.EchoRunner", SlowRunner)
    replica = await start(ReplicaOptions.load(flags=echo_options()), wait=False)
    try:
        async with httpx.AsyncClient(base_url=replica.url, trust_env=False) as http:
            health = await http.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": "loading"})
            for path in ("/state", "/digest", "/v1/models"):
                assert (await http.get(path)).status_code == 503
            response = await http.post("/v1/completions", json={"model": "m", "prompt": "x"})
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert (await http.get("/metrics")).status_code == 200
            SlowRunner.let.set()
            await replica.loaded()
            assert (await http.get("/health")).status_code == 200
    finally:
        SlowRunner.let.set()
        await replica.stop()


async def test_a_model_that_cannot_be_loaded_stops_the_start(tmp_path: Any) -> None:
    options = ReplicaOptions.load(flags=echo_options(model_directory=str(tmp_path)))
    with pytest.raises(FileNotFoundError):
        await start(options)


async def test_draining_lets_streams_finish_and_refuses_the_rest(launch: Launch) -> None:
    client = await launch(echo=LONG, linger_seconds=0.2)
    streams = [asyncio.create_task(stream_text(client, 60)) for _ in range(5)]
    await client.until(lambda state: state["load"]["running"] == 5)
    draining = asyncio.create_task(client.replica.drain())
    await client.until(lambda state: state["draining"])
    health = await client.http.get("/health")
    assert (health.status_code, health.json()) == (503, {"status": "draining"})
    response = await client.complete([1])
    assert response.status_code == 503
    assert response.headers["connection"] == "close"
    assert response.headers["retry-after"]
    texts = await asyncio.gather(*streams)
    assert all(text.endswith("data: [DONE]\n\n") and "error" not in text for text in texts)
    await draining


async def test_what_does_not_finish_in_time_ends_with_an_error_event(launch: Launch) -> None:
    client = await launch(echo=LONG, drain_seconds=0.1)
    stream = asyncio.create_task(stream_text(client, 2000))
    whole = asyncio.create_task(client.complete([1, 2], max_tokens=2000))
    await client.until(lambda state: state["load"]["running"] == 2)
    await client.replica.drain()
    text = await stream
    assert '"code":"shutting_down"' in text
    assert text.endswith("data: [DONE]\n\n")
    assert (await whole).status_code == 503


async def test_late_comers_are_told_until_the_port_closes(launch: Launch) -> None:
    client = await launch(linger_seconds=0.3)
    draining = asyncio.create_task(client.replica.drain())
    await client.until(lambda state: state["draining"])
    while not draining.done():
        async with httpx.AsyncClient(base_url=client.replica.url, trust_env=False) as http:
            assert (await http.get("/health")).status_code == 503


SCRIPT = """
import json
import sys
from replica.app import run
from replica.options import ReplicaOptions
run(ReplicaOptions.load(flags=json.loads(sys.argv[1])))
"""


@asynccontextmanager
async def process(
    port: int, script: str = SCRIPT, healthy: int = 200, echo: Any = LONG, **fields: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a replica as a process and wait until it is as healthy; it is gone after the test in any case."""
    flags = echo_options(port=port, echo=echo, **fields)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", script, json.dumps(flags))
    try:
        async with asyncio.timeout(30), httpx.AsyncClient(trust_env=False) as http:
            while True:
                if await answers(http, f"http://127.0.0.1:{port}", healthy):
                    break
                await asyncio.sleep(0.05)
        yield child
        async with asyncio.timeout(20):
            await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def answers(http: httpx.AsyncClient, url: str, status: int) -> bool:
    """Say whether the replica's health is of a status; no connection is none."""
    try:
        return (await http.get(f"{url}/health")).status_code == status
    except httpx.TransportError:
        return False


async def begin(http: httpx.AsyncClient, url: str, tokens: int) -> httpx.Response:
    """Open a stream, and return once its first bytes are there."""
    body = {"model": "m", "prompt": [1, 2], "max_tokens": tokens, "stream": True}
    response = await http.send(http.build_request("POST", f"{url}/v1/completions", json=body), stream=True)
    assert response.status_code == 200
    return response


async def draining(http: httpx.AsyncClient, url: str) -> None:
    """Wait until the replica says that it goes."""
    async with asyncio.timeout(5):
        while (await http.get(f"{url}/health")).status_code != 503:
            pass


async def test_sigterm_drains_and_exits_cleanly(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with process(unused_tcp_port) as child, httpx.AsyncClient(trust_env=False) as http:
        response = await begin(http, url, 100)
        child.send_signal(signal.SIGTERM)
        await draining(http, url)
        text = (await response.aread()).decode()
        assert text.endswith("data: [DONE]\n\n")
        assert "error" not in text
        words = [json.loads(event[6:])["choices"][0]["text"] for event in text.split("\n\n")[:-2]]
        assert len("".join(words)) == 400
    assert child.returncode == 0


async def test_sigterm_ends_what_takes_too_long_with_an_error_event(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with (
        process(unused_tcp_port, drain_seconds=0.2) as child,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        responses = [await begin(http, url, 30_000) for _ in range(10)]
        child.send_signal(signal.SIGTERM)
        for response in responses:
            text = (await response.aread()).decode()
            assert '"code":"shutting_down"' in text
            assert text.endswith("data: [DONE]\n\n")
    assert child.returncode == 0


async def test_late_connections_are_answered_until_the_process_goes(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    body = {"model": "m", "prompt": [1, 2], "max_tokens": 4}
    refused = 0
    async with (
        process(unused_tcp_port, linger_seconds=2) as child,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        child.send_signal(signal.SIGTERM)
        await draining(http, url)
        while child.returncode is None:
            try:
                # Each on a connection of its own, as those make who have not heard.
                async with httpx.AsyncClient(trust_env=False, verify=False) as late:
                    response = await late.post(f"{url}/v1/completions", json=body)
            except httpx.TransportError:
                # Only at the very end, after which nothing is there.
                async with asyncio.timeout(5):
                    await child.wait()
                break
            assert response.status_code == 503
            assert response.headers["connection"] == "close"
            assert response.headers["retry-after"] == "1"
            refused += 1
    assert refused > 0
    assert child.returncode == 0


NEVER_LOADED = f"""
import time
import replica.loading
class Never(replica.loading.EchoRunner):
    def __init__(self, *given, **named):
        time.sleep(120)
replica.loading.EchoRunner = Never
{SCRIPT}"""


async def test_sigterm_while_loading_does_not_wait_for_it(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with process(unused_tcp_port, script=NEVER_LOADED, healthy=503) as child:
        child.send_signal(signal.SIGTERM)
    assert child.returncode == 0
    async with httpx.AsyncClient(trust_env=False) as http:
        assert not await answers(http, url, 503)


async def test_nothing_that_is_nobodys_holds_the_process(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    events = {"enabled": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"}
    slow = {"base_seconds": 0.0, "per_token_seconds": 0.01, "per_token_context_seconds": 0.0}
    fields: dict[str, Any] = {
        "events": events,
        "scheduler": {"max_batch_tokens": 32},
        "echo": {"prefill": slow},
    }
    async with process(unused_tcp_port, **fields) as child, httpx.AsyncClient(trust_env=False) as http:
        source = (await http.get(f"{url}/kv_event_sources")).json()["0"]
        with follow(source):
            prewarm = asyncio.create_task(http.post(f"{url}/prefill", json={"tokens": [1] * 32_000}))
            async with asyncio.timeout(5):
                while (await http.get(f"{url}/state")).json()["load"]["kv_usage"] == 0:
                    pass
            child.send_signal(signal.SIGTERM)
            assert (await prewarm).status_code == 503
    assert child.returncode == 0


async def test_a_second_sigterm_exits_at_once(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with process(unused_tcp_port) as child, httpx.AsyncClient(trust_env=False) as http:
        response = await begin(http, url, 3000)
        child.send_signal(signal.SIGTERM)
        await draining(http, url)
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 128 + signal.SIGTERM
        await response.aclose()
