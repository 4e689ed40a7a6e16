"""The watch over an engine goes on whatever happens."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from time import monotonic

import aiohttp
import pytest

from router.chain.namer import ChainNamer
from router.chain.namers import Namers
from router.chain.options import ChainOptions
from router.config import EventOptions
from router.sidecar.options import SidecarOptions
from router.sidecar.watch import EngineWatch
from tests.router.events.publisher import Publisher
from tests.router.scripted import until
from tests.router.sidecar.engine import ScriptedVllm
from tests.tiny_tokenizer import write_tiny_tokenizer


class FailingOnce(Namers):
    """Namers with a fault that shows the first time that they are asked."""

    failed = False

    def by_tokens(self, model: str) -> ChainNamer | None:
        if not self.failed:
            self.failed = True
            raise ZeroDivisionError
        return super().by_tokens(model)


async def test_a_fault_does_not_end_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    publisher = Publisher()
    engine = ScriptedVllm(publisher.place)
    await engine.start()
    namers = FailingOnce(ChainOptions(), {"m": write_tiny_tokenizer(tmp_path / "m")})
    async with aiohttp.ClientSession() as session:
        watch = EngineWatch(SidecarOptions(engine=engine.url), EventOptions(), namers, session, monotonic)
        watching = asyncio.create_task(watch.run())
        try:
            with caplog.at_level(logging.ERROR, "kvring.sidecar"):
                await until(lambda: not watch.reason)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            publisher.close()
            await engine.stop()
    (record,) = caplog.records
    assert record.exc_info
