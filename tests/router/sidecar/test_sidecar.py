"""A sidecar in its own process, beside a scripted engine: routers read from it what the engine holds."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from loadgen.children import Child, free_ports, start_child, stop_children
from router.chain.digest import Digest
from router.chain.keys import Keys
from router.chain.namer import ChainNamer
from tests.router.events.publisher import CLEARED, Publisher, prompt, removed, stored
from tests.router.sidecar.engine import ScriptedVllm
from tests.tiny_tokenizer import tiny_tokenizer, write_tiny_tokenizer

_NAMER = ChainNamer("sha256", "a seed", 16, tiny_tokenizer())


def _names(tokens: list[int], model: str = "m") -> list[bytes]:
    return list(_NAMER.chain_of_tokens(tokens, Keys(model)).names)


class _Client:
    """Asks one sidecar."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def get(self, path: str, **headers: str) -> tuple[int, Any, Mapping[str, str]]:
        async with self._session.get(self._url + path, headers=headers) as response:
            json = response.content_type == "application/json"
            body = await (response.json() if json else response.text())
            return response.status, body, response.headers

    async def digest(self, *expected: bytes) -> tuple[Digest, Mapping[str, str]]:
        """Ask until the digest holds just so many names, and check that it holds these."""
        async with asyncio.timeout(20):
            while True:
                status, body, headers = await self.get("/digest")
                if status == 200 and body["names"] == len(expected):
                    digest = Digest.from_json(body)
                    assert all(name in digest for name in expected)
                    assert body["age_seconds"] >= 0
                    return digest, headers
                await asyncio.sleep(0.02)

    async def not_ready(self, reason: str) -> None:
        """Ask until it says why it is not ready."""
        async with asyncio.timeout(20):
            while True:
                status, body, _ = await self.get("/readyz")
                if status == 503 and reason in body["reason"]:
                    return
                await asyncio.sleep(0.02)


@asynccontextmanager
async def _sidecar(tmp_path: Path, *arguments: str) -> AsyncIterator[tuple[Child, _Client]]:
    directory = write_tiny_tokenizer(tmp_path / "tokenizer")
    config = tmp_path / "kvring.toml"
    config.write_text(
        f'[chain]\nseed = "a seed"\n[fleet.events]\nsource = "sidecar"\n'
        f'[models.m]\ntokenizer_directory = "{directory}"\n'
        f'[models.adapter]\ntokenizer_directory = "{directory}"\n'
    )
    (port,) = free_ports(1)
    child = start_child(
        "sidecar", ["sidecar", "--config", str(config), "--port", str(port), *arguments], tmp_path, {}
    )
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            client = _Client(f"http://127.0.0.1:{port}", session)
            while True:
                try:
                    if (await client.get("/healthz"))[0] == 200:
                        break
                except aiohttp.ClientConnectorError:
                    assert child.ended() is None, child.tail()
                await asyncio.sleep(0.05)
            yield child, client
    finally:
        await stop_children([child], 5.0)


async def test_what_the_engine_holds_is_served_until_told_to_end(tmp_path: Path) -> None:
    publisher = Publisher()
    engine = ScriptedVllm(publisher.place)
    engine.adapters["adapter"] = "m"
    await engine.start()
    before, later, adapted = prompt(1, 4), prompt(2, 4), prompt(3, 4)
    publisher.publish(stored(*before))
    try:
        async with _sidecar(tmp_path, "--engine", engine.url) as (child, client):
            first, headers = await client.digest(*_names(before[0]))
            assert first.identity == _NAMER.identity.fingerprint
            assert float(headers["x-kvring-digest-age"]) >= 0
            assert (await client.get("/readyz"))[:2] == (200, {"status": "ok"})

            status, body, again = await client.get("/digest", **{"If-None-Match": headers["ETag"]})
            assert (status, body, again["ETag"]) == (304, "", headers["ETag"])
            assert "x-kvring-digest-age" in again

            publisher.publish(stored(*later), stored(*adapted, lora_name="adapter", lora_id=1))
            names = _names(before[0]) + _names(later[0]) + _names(adapted[0], "adapter")
            second, changed = await client.digest(*names)
            assert second.epoch == first.epoch
            assert changed["ETag"] != headers["ETag"]
            status, _, _ = await client.get("/digest", **{"If-None-Match": headers["ETag"]})
            assert status == 200

            publisher.publish(CLEARED, stored(*later))
            third, _ = await client.digest(*_names(later[0]))
            assert third.epoch != first.epoch

            _, metrics, _ = await client.get("/metrics")
            assert "kvring_event_batches_total{" in metrics
            assert "kvring_index_blocks{" in metrics

            child.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                while child.process.poll() is None:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
            assert child.process.returncode == 0, child.tail()
            assert "Traceback" not in child.tail()
    finally:
        publisher.close()
        await engine.stop()


async def test_an_engine_that_goes_and_comes_back_is_followed_again(tmp_path: Path) -> None:
    publisher = Publisher()
    place = publisher.place
    arguments = ("--events", place.endpoint, "--replay", place.replay_endpoint)
    engine = ScriptedVllm()
    await engine.start()
    old, new = prompt(1, 4), prompt(2, 4)
    publisher.publish(stored(*old))
    try:
        async with _sidecar(tmp_path, "--engine", engine.url, *arguments) as (_, client):
            first, _ = await client.digest(*_names(old[0]))
            publisher.close()
            await client.not_ready("nothing is heard at")
            status, body, _ = await client.get("/digest")
            assert status == 503
            assert "nothing is heard" in body["error"]["message"]
            publisher = Publisher(at=place)
            publisher.publish(stored(*new), removed([1, 2]))
            second, _ = await client.digest(*_names(new[0]))
            assert second.epoch != first.epoch
    finally:
        publisher.close()
        await engine.stop()


async def test_it_says_why_it_knows_nothing(tmp_path: Path) -> None:
    engine = ScriptedVllm()
    await engine.start()
    try:
        async with _sidecar(tmp_path, "--engine", engine.url) as (_, client):
            await client.not_ready("publishes no KV events")
            assert (await client.get("/digest"))[0] == 503
            assert (await client.get("/nowhere"))[0] == 404
    finally:
        await engine.stop()


async def test_a_model_without_tokenizer_is_told(tmp_path: Path) -> None:
    publisher = Publisher(kept=0)
    engine = ScriptedVllm(publisher.place, models=("unheard-of",))
    await engine.start()
    try:
        async with _sidecar(tmp_path, "--engine", engine.url) as (_, client):
            await client.not_ready("no tokenizer_directory")
    finally:
        publisher.close()
        await engine.stop()


async def test_an_engine_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with _sidecar(tmp_path, "--engine", f"http://127.0.0.1:{port}") as (child, client):
        await client.not_ready("does not answer")
        assert child.ended() is None


async def test_unfit_options_are_told_and_not_traced(tmp_path: Path) -> None:
    for arguments in (
        ["--engine", "nonsense"],
        ["--port", "99999999"],
        ["--replay", "tcp://127.0.0.1:1"],
        ["--set", "chain.seed=''"],
    ):
        child = start_child("unfit", ["sidecar", *arguments], tmp_path, {})
        try:
            async with asyncio.timeout(30):
                while child.process.poll() is None:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
            assert child.process.returncode == 2, child.tail()
            assert "Traceback" not in child.tail()
        finally:
            await stop_children([child], 1.0)
