"""Loading, draining, stopping: nobody is cut who need not be, and everybody is told."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from typing import Any

import httpx
import pytest

from replica.app import start
from replica.options import ReplicaOptions
from replica.runner.echo import EchoRunner
from tests.replica.conftest import Client, Launch, echo_options

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
    monkeypatch.setattr("replica.app.EchoRunner", SlowRunner)
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


SCRIPT = f"""
import sys
import threading
from replica.app import run
from replica.options import ReplicaOptions
run(ReplicaOptions.load(flags={{**{echo_options(echo=LONG)!r}, "port": int(sys.argv[1])}}))
"""


async def process(port: int) -> asyncio.subprocess.Process:
    """Start a replica as a process and wait until it is ready."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", SCRIPT, str(port))
    async with asyncio.timeout(30), httpx.AsyncClient(trust_env=False) as http:
        while True:
            try:
                if (await http.get(f"http://127.0.0.1:{port}/health")).status_code == 200:
                    return child
            except httpx.TransportError:
                await asyncio.sleep(0.05)


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
    child = await process(unused_tcp_port)
    async with httpx.AsyncClient(trust_env=False) as http:
        response = await begin(http, url, 100)
        child.send_signal(signal.SIGTERM)
        await draining(http, url)
        text = (await response.aread()).decode()
        assert text.endswith("data: [DONE]\n\n")
        assert "error" not in text
        words = [json.loads(event[6:])["choices"][0]["text"] for event in text.split("\n\n")[:-2]]
        assert len("".join(words)) == 400
    assert await child.wait() == 0


async def test_a_second_sigterm_exits_at_once(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    child = await process(unused_tcp_port)
    async with httpx.AsyncClient(trust_env=False) as http:
        response = await begin(http, url, 3000)
        child.send_signal(signal.SIGTERM)
        await draining(http, url)
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 128 + signal.SIGTERM
        await response.aclose()
