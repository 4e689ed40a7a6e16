"""The echo runner: answers in turn, and takes the time that it is told."""

from __future__ import annotations

import pytest

from replica.batch import Batch, Sampling, Work
from replica.runner.echo import EchoRunner
from router.wire.report import PrefillCost

COST = PrefillCost(0.01, 1e-4, 3e-9)


def runner() -> EchoRunner:
    return EchoRunner(
        [5, 6, 7], prefill=COST, decode_seconds=0.02, block_tokens=16, block_count=10, context_tokens=1000
    )


def work(start: int, count: int, sample: bool = True, sampled: int = 0) -> Work:
    return Work(1, list(range(count)), start, list(range(10)), sample, Sampling(), sampled)


def test_tokens_follow_the_filler_by_their_number() -> None:
    echo = EchoRunner(
        [5, 6, 7],
        prefill=PrefillCost(0, 1e-9, 0),
        decode_seconds=0,
        block_tokens=16,
        block_count=10,
        context_tokens=1000,
    )
    batch = Batch((work(0, 5), work(9, 1, sampled=4), work(0, 5, sample=False)))
    assert echo.run(batch) == [5, 6, None]


def test_chunks_take_what_the_whole_prompt_takes() -> None:
    chunks = (work(32, 68, sample=False), work(100, 50))
    seconds = sum(runner().seconds(Batch((chunk,))) for chunk in chunks)
    assert seconds == pytest.approx(COST.seconds(150, 32))


def test_decodes_of_a_step_share_its_time() -> None:
    decodes = tuple(work(20, 1, sampled=2) for _ in range(3))
    assert runner().seconds(Batch(decodes)) == pytest.approx(0.02)
    # A prompt that was cached but for one token is still a prefill.
    assert runner().seconds(Batch((*decodes, work(16, 1)))) == pytest.approx(0.02 + COST.seconds(17, 16))


def test_the_context_is_no_longer_than_the_pool() -> None:
    assert runner().context_tokens == 160
