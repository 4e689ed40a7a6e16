"""With the real model: the cache changes no token, and spares the work that it says it spares."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from replica.model.bundled import bundled_model_directory
from replica.runner.torch_options import TorchOptions
from replica.runner.torch_runner import TorchRunner
from tests.replica.dense import DenseLlama
from tests.replica.drives import Drive

BLOCK = 16
VOCABULARY = 49_152
ANSWER = 5


@pytest.fixture(scope="module")
def directory() -> Path:
    return bundled_model_directory()


def random_tokens(random: Random, count: int) -> list[int]:
    return [random.randrange(3, VOCABULARY) for _ in range(count)]


def run_all(drive: Drive, prompts: list[list[int]]) -> tuple[list[list[int]], list[int]]:
    """Run the prompts together; return the answers, and how many tokens of each were cached."""
    ids = [drive.add(prompt, ANSWER) for prompt in prompts]
    drive.finish()
    return [drive.answers[id] for id in ids], [drive.sequences[id].cached_tokens or 0 for id in ids]


@pytest.mark.model
def test_a_warm_cache_a_cold_one_and_a_dense_forward_give_the_same_tokens(directory: Path) -> None:
    # With this seed the best token leads by 0.006 at least, far more than fp32 rounds by.
    random = Random(6)
    prompts = [random_tokens(random, random.randint(18, 50)) for _ in range(50)]
    options = TorchOptions(dtype="fp32", block_count=256)
    runner = TorchRunner(directory, options)
    drive = Drive(256, max_running=32, max_batch_tokens=256, block_tokens=BLOCK, runner=runner)
    cold, cold_hits = run_all(drive, prompts)
    warm, warm_hits = run_all(drive, prompts)
    runner.close()
    assert cold_hits == [0] * len(prompts)
    assert warm_hits == [(len(prompt) - 1) // BLOCK * BLOCK for prompt in prompts]
    assert warm == cold
    dense = DenseLlama(directory)
    for prompt, answer in zip(prompts, cold, strict=True):
        # One pass tells what greedy decoding gives after each token of the answer.
        logits = dense.logits([*prompt, *answer[:-1]])[len(prompt) - 1 :]
        assert logits.argmax(dim=-1).tolist() == answer


@pytest.fixture
def served(directory: Path) -> Iterator[Drive]:
    """Blocks for all rounds, so that nothing is evicted and each round's prefix is its own."""
    runner = TorchRunner(directory, TorchOptions(block_count=512), BLOCK)
    yield Drive(512, max_running=4, max_batch_tokens=2048, block_tokens=BLOCK, runner=runner)
    runner.close()


def cpu_seconds_to_first_token(drive: Drive, prompt: list[int]) -> float:
    """CPU time, since other processes may hold this one up."""
    id = drive.add(prompt, max_tokens=1)
    start = time.process_time()
    while not drive.answers[id]:
        drive.step()
    return time.process_time() - start


@pytest.mark.model
def test_nine_tenths_cached_take_a_quarter_of_the_time_at_most(served: Drive) -> None:
    random = Random(7)
    ratio = 1.0
    for rounds in range(1, 4):
        prompt = random_tokens(random, 1500)
        cold = cpu_seconds_to_first_token(served, prompt)
        next_prompt = prompt[:1350] + random_tokens(random, 150)
        warm = cpu_seconds_to_first_token(served, next_prompt)
        assert served.scheduler.counts.prefix_hits == rounds * 1344
        ratio = min(ratio, warm / cold)
        if ratio <= 0.25:
            break
    assert ratio <= 0.25
