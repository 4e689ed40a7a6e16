"""Following the events of an engine: those of its own model, and none where it says that there are none."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

from router.chain.namers import Namers
from router.chain.options import ChainOptions
from router.config import EventOptions, FleetOptions
from router.engines.vllm import Vllm
from router.fleet.board import Board
from router.fleet.calibration import Calibration
from router.fleet.following import Following
from router.fleet.members import Member
from router.fleet.replica import Replica
from tests.router.engines.scripted_engines import VLLM, served
from tests.tiny_tokenizer import write_tiny_tokenizer

_EVENTS = EventOptions(source="replica")


async def test_one_that_says_that_it_publishes_none_is_not_waited_for(tmp_path: Path) -> None:
    replica = Replica(Member("http://127.0.0.1:9", "r"), 2, Board(), Calibration(FleetOptions().calibration))
    namers = Namers(ChainOptions(), {"m": write_tiny_tokenizer(tmp_path / "m")})
    following = Following(replica, namers, _EVENTS, monotonic, None)
    silent = {**VLLM, "/kv_event_sources": []}
    untold = {path: answer for path, answer in VLLM.items() if path != "/kv_event_sources"}
    try:
        for answers, followed in ((VLLM, True), (silent, False), (untold, True)):
            async with served(answers) as (_, get):
                await following.take(await Vllm().facts(get, "127.0.0.1", _EVENTS))
            assert (following.counts is not None) is followed
    finally:
        await following.stop()
