"""The table of what engines tell is true: each claim holds for a scripted engine that tells all it can."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from router.config import EventOptions
from router.engines.capabilities import CAPABILITIES, Matter, Told
from router.engines.detect import engine_of
from router.engines.engine import EngineFacts, EngineLoad
from router.gateway.continuation import journal_of
from router.gateway.usage import AnswerReader
from tests.router.engines.scripted_engines import ENGINES, served

README = (Path(__file__).parents[3] / "README.md").read_text()
# What the README calls each matter.
ROWS = {
    Matter.LOAD: "requests running, waiting",
    Matter.KV_USE: "KV use",
    Matter.QUEUED_WORK: "queued work, in seconds",
    Matter.CACHED_TOKENS: "cached tokens",
    Matter.BLOCK_SIZE: "block size",
    Matter.HASH_ALGORITHM: "hash algorithm",
    Matter.KV_EVENTS: "what its cache holds",
    Matter.RESTART: "restart",
    Matter.CONTINUATION: "streams that go on elsewhere",
}
# What engines say at the end of an answer, with the flags that the table names.
USAGES = {
    "vllm": b'{"usage":{"prompt_tokens":64,"completion_tokens":1,"total_tokens":65,'
    b'"prompt_tokens_details":{"cached_tokens":48,"created_cache_tokens":16}}}',
    "sglang": b'{"usage":{"prompt_tokens":64,"completion_tokens":1,"total_tokens":65,'
    b'"prompt_tokens_details":{"cached_tokens":48},"reasoning_tokens":0}}',
    "trtllm": b'{"usage":{"prompt_tokens":64,"completion_tokens":1,"total_tokens":65,'
    b'"prompt_tokens_details":{"cached_tokens":48}}}',
    "llamacpp": b'{"usage":{"completion_tokens":1,"prompt_tokens":64,"total_tokens":65,'
    b'"prompt_tokens_details":{"cached_tokens":48}},"timings":{"cache_n":48,"prompt_n":16}}',
    "plain": b'{"usage":{"prompt_tokens":64,"completion_tokens":1,"total_tokens":65}}',
}


@dataclass(frozen=True)
class Seen:
    """What an engine of a kind told: events without, and with, ports that were configured."""

    facts: EngineFacts
    configured: EngineFacts
    load: EngineLoad | None
    cached_tokens: int | None


async def ask(kind: str) -> Seen:
    reader = AnswerReader()
    reader.read_body(USAGES[kind])
    async with served(ENGINES[kind]) as (_, get):
        engine = engine_of(kind)
        facts = await engine.facts(get, "h", EventOptions())
        configured = await engine.facts(get, "h", EventOptions(source="replica"))
        return Seen(facts, configured, await engine.load(get), reader.cached_tokens)


def tells(seen: Seen, matter: Matter) -> Told:
    """How well the matter is told, by what was seen alone; exact where the engine itself told it."""
    load, facts = seen.load, seen.facts
    exact = {
        Matter.LOAD: load is not None,
        Matter.KV_USE: load is not None and load.kv_usage > 0,
        Matter.QUEUED_WORK: load is not None and load.waiting_tokens is not None,
        Matter.CACHED_TOKENS: seen.cached_tokens == 48,
        Matter.BLOCK_SIZE: facts.block_tokens is not None,
        Matter.HASH_ALGORITHM: facts.hash_algorithm != "",
        Matter.KV_EVENTS: bool(facts.events),
        Matter.RESTART: facts.process != "",
        Matter.CONTINUATION: journal_of(facts.engine, "/v1/completions") is not None,
    }
    if exact[matter]:
        return Told.EXACT
    concluded = {
        # Of any engine: what this router sent there, and whether anything listens.
        Matter.QUEUED_WORK: True,
        Matter.RESTART: True,
        Matter.KV_EVENTS: bool(seen.configured.events),
    }
    return Told.ESTIMATED if concluded.get(matter) else Told.ABSENT


# Told, but with a catch that makes it less than exact, or only by a second choice of answers.
WEAKER = {
    ("sglang", Matter.QUEUED_WORK),
    ("sglang", Matter.RESTART),
    ("trtllm", Matter.LOAD),
    ("trtllm", Matter.KV_USE),
    ("trtllm", Matter.RESTART),
    ("llamacpp", Matter.RESTART),
}


@pytest.mark.parametrize("kind", ENGINES)
async def test_the_table_says_what_is_so(kind: str) -> None:
    seen = await ask(kind)
    for matter, capability in CAPABILITIES[kind].items():
        if (kind, matter) in WEAKER:
            assert tells(seen, matter) is Told.EXACT
            assert capability.told is Told.ESTIMATED
        elif (kind, matter) != ("llamacpp", Matter.KV_USE):
            assert capability.told is tells(seen, matter), (kind, matter)


async def test_kv_use_of_llamacpp_comes_from_slots_only() -> None:
    async with served({**ENGINES["llamacpp"], "/metrics": 501}) as (_, get):
        load = await engine_of("llamacpp").load(get)
    assert load is not None
    assert load.kv_usage > 0
    assert CAPABILITIES["llamacpp"][Matter.KV_USE].told is Told.ESTIMATED


def test_the_table_is_whole() -> None:
    assert set(CAPABILITIES) == set(ENGINES)
    for kind, row in CAPABILITIES.items():
        assert set(row) == set(Matter), kind
        assert all(capability.how for capability in row.values())


def test_the_table_of_the_readme_is_this_one() -> None:
    """The README says of each cell how well it is told, first of all, or in other words that it is not."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in README.splitlines() if "|" in line]
    start = next(place for place, row in enumerate(cells) if row[:1] == ["behind any of them"])
    assert cells[start][1:] == ["kvring", "vLLM", "SGLang", "TensorRT-LLM", "llama.cpp", "other"]
    rows = {row[0]: row[2:] for row in cells[start + 2 : start + 2 + len(Matter)]}
    assert set(rows) == set(ROWS.values())
    for matter, label in ROWS.items():
        for kind, cell in zip(("vllm", "sglang", "trtllm", "llamacpp", "plain"), rows[label], strict=True):
            first = re.split("[^a-z]", cell)[0]
            told = Told.ABSENT if cell in ("by hashing alone", "counted if told") else Told(first)
            assert told is CAPABILITIES[kind][matter].told, (kind, matter)
