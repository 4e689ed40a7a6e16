"""One client, replica or model never holds up another."""

from __future__ import annotations

import asyncio
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from router.chain.namer import ChainNamer
from tests.router.scripted import BODY, chunk, rig, stream, until
from tests.tiny_tokenizer import CHATML, write_tiny_tokenizer


async def test_a_hung_replica_holds_up_nobody_else() -> None:
    async with rig(3, policy={"name": "round_robin"}) as up:

        async def hang(request: web.Request) -> web.Response:
            await asyncio.sleep(30)
            return web.Response()

        up.replicas[1].answer = hang
        pending = [asyncio.create_task(up.post()) for _ in range(90)]
        await until(lambda: up.replicas[1].running == 30)
        await until(lambda: sum(task.done() for task in pending) == 60)
        assert {task.result()[0] for task in pending if task.done()} == {200}
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def test_a_stream_may_last_longer_than_any_single_wait() -> None:
    limits = {"first_byte_seconds": 0.5, "idle_seconds": 0.5, "connect_seconds": 0.5}
    async with rig(1, limits=limits) as up:
        events = [chunk(str(number)) for number in range(12)] + [chunk(None, "stop"), b"data: [DONE]\n\n"]
        up.replicas[0].answer = lambda request: stream(request, events, pause_seconds=0.1)
        status, received, _ = await up.post({**BODY, "stream": True})
        assert (status, received) == (200, b"".join(events))


async def test_the_first_event_is_passed_on_before_the_second_exists() -> None:
    async with rig(1) as up:
        gate = asyncio.Event()

        async def one_then_wait(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await gate.wait()
            for event in (chunk("a"), chunk(None, "stop"), b"data: [DONE]\n\n"):
                await response.write(event)
                gate.clear()
                await gate.wait()
            return response

        up.replicas[0].answer = one_then_wait
        async with up.session.post(
            f"{up.router.address}/v1/chat/completions",
            json={**BODY, "stream": True},
            headers={"Accept-Encoding": "gzip"},
        ) as response:
            # Headers first, before any token.
            assert response.status == 200
            assert "Content-Encoding" not in response.headers
            for expected in (chunk("a"), chunk(None, "stop"), b"data: [DONE]\n\n"):
                gate.set()
                assert await response.content.readany() == expected
            gate.set()


async def test_a_huge_prompt_does_not_stop_the_loop(tmp_path: Path) -> None:
    """Probes are answered all the while it is tokenised."""
    directory = write_tiny_tokenizer(tmp_path / "model")
    huge = json.dumps({**BODY, "messages": [{"role": "user", "content": "the river and the sea. " * 50_000}]})
    models = {"m": {"tokenizer_directory": str(directory)}}
    async with rig(1, models=models, limits={"tokenised_bytes": 8_000_000}) as up:
        posting = asyncio.create_task(
            up.session.post(f"{up.router.address}/v1/chat/completions", data=BytesIO(huge.encode()))
        )
        probes = 0
        while not posting.done():
            assert (await up.get("/healthz"))[0] == 200
            probes += 1
        assert (await posting).status == 200
        assert (await posting).headers["x-kvring-tier"] == "tokens"
        # Tokenising millions of bytes takes far longer than a probe: many were answered meanwhile.
        assert probes >= 10


@pytest.mark.parametrize("kind", ["prompts", "messages", "tokens"])
async def test_a_body_of_many_parts_does_not_stop_the_loop(kind: str) -> None:
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "prompts": ("/v1/completions", {"model": "m", "prompt": [[1]] * 600_000}),
        "messages": (
            "/v1/chat/completions",
            {"model": "m", "messages": [{"role": "user", "content": "x"}] * 60_000},
        ),
        "tokens": ("/v1/completions", {"model": "m", "prompt": list(range(600_000))}),
    }
    path, body = bodies[kind]
    raw = json.dumps(body).encode()
    async with rig(1) as up:
        posting = asyncio.create_task(up.session.post(up.router.address + path, data=BytesIO(raw)))
        probes = 0
        while not posting.done():
            assert (await up.get("/healthz"))[0] == 200
            probes += 1
        assert (await posting).status == 200
        assert probes >= 3


async def test_every_model_is_named_by_its_own_tokenizer(tmp_path: Path) -> None:
    one = write_tiny_tokenizer(tmp_path / "one")
    two = write_tiny_tokenizer(tmp_path / "two")
    (two / "chat_template.jinja").write_text(CHATML.replace("You help.", "You are of use."))
    models = {"m": {"tokenizer_directory": str(one)}, "m2": {"tokenizer_directory": str(two)}}
    async with rig(2, models=models) as up:
        up.replicas[1].models = ("m2",)
        await until(lambda: up.router.fleet.models() == ["m", "m2"])
        for model in ("m2", "m", "m3"):
            status, _, response = await up.post({**BODY, "model": model})
            if model == "m3":
                assert status == 404
            else:
                assert response.headers["x-kvring-tier"] == "tokens"
        prepare = up.router.preparer.namers.identity_of
        assert prepare("m").template_fingerprint != prepare("m2").template_fingerprint
        assert prepare("m3").kind == "bytes"


async def test_another_block_size_is_a_mismatch_not_silence() -> None:
    async with rig(1) as up:
        up.replicas[0].identity = ChainNamer("sha256", "kvring", 32, None).identity
        await until(lambda: up.router.fleet.replicas[0].mismatch)
        assert await up.metric("kvring_replica_chain_mismatch", replica="r0") == 1
        assert (await up.post())[0] == 200
