"""Timings: what computing a prompt took, without its wait, for the router to learn from."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest

from replica.batch import Batch, Sampling, Work
from replica.load import NOTHING
from replica.sequence import Sequence
from replica.step import Step
from router.wire.report import PrefillCost
from tests.replica.conftest import Launch
from tests.replica.test_streaming import chat, events_of

SLOW = {"prefill": {"base_seconds": 0.1, "per_token_seconds": 1e-3, "per_token_context_seconds": 0}}


def seconds(timings: dict[str, Any]) -> float:
    """What they say; echo replicas never take less than S."""
    return float(timings["prompt_ms"]) / 1000


async def test_an_answer_tells_what_its_prompt_took(launch: Launch) -> None:
    client = await launch(echo=SLOW)
    prompt = " ".join(f"word{number}" for number in range(60))
    first, second = [(await client.complete(prompt)).json() for _ in range(2)]
    for answer in (first, second):
        usage, timings = answer["usage"], answer["timings"]
        assert timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
        assert seconds(timings) >= 0.1 + 1e-3 * timings["prompt_n"]
    assert second["timings"]["cache_n"] > 0


async def test_a_stream_tells_it_with_its_usage(launch: Launch) -> None:
    client = await launch(echo=SLOW)
    *others, last = await events_of(
        client, "/v1/chat/completions", chat(stream_options={"include_usage": True})
    )
    assert seconds(last["timings"]) >= 0.1
    assert all("timings" not in event for event in others)
    assert all(
        "timings" not in event for event in await events_of(client, "/v1/completions", {"prompt": "x"})
    )


async def test_the_wait_is_not_counted(launch: Launch) -> None:
    client = await launch(echo=SLOW, scheduler={"max_running": 1})
    began = monotonic()
    answers = await asyncio.gather(
        *(client.complete(f"prompt {number}", max_tokens=1) for number in range(6))
    )
    whole = monotonic() - began
    # One after the other: had they counted the wait, they would add up to several times the whole.
    assert sum(seconds(answer.json()["timings"]) for answer in answers) <= whole


def test_a_step_is_divided_by_what_its_parts_cost() -> None:
    cost = PrefillCost(1.0, 1.0, 0.0)
    prompts = [
        Sequence([1] * length, length, [], {}, Sampling(), 4, id=number)
        for number, length in [(1, 4), (2, 9)]
    ]
    decoding = Sequence([1, 2, 3], 2, [], {}, Sampling(), 4, id=3)
    works = [Work(3, [3], 2, [0], True, Sampling(), 1)]
    works += [Work(one.id, one.tokens, 0, [0], True, Sampling()) for one in prompts]
    step = Step(Batch(tuple(works)), (decoding, *prompts), NOTHING, 1)
    for _ in range(2):
        step.charge(cost, 3.0)
    assert [one.prefill_seconds for one in prompts] == pytest.approx([2.0, 4.0])
    assert decoding.prefill_seconds == 0
