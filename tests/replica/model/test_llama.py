"""The paged forward against the dense one: random chunks, mixed batches, shared prefixes, poisoned blocks."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.batch import Batch, Sampling, Work
from replica.model.bundled import bundled_model_directory
from replica.runner.torch_options import TorchOptions
from replica.runner.torch_runner import TorchRunner
from tests.replica.dense import DenseLlama
from tests.replica.tiny_llama import CONFIG, write_tiny_llama

BLOCK = 4
TOLERANCE = 2e-4


@dataclass
class Sequence:
    tokens: list[int]
    blocks: list[int] = field(default_factory=list)
    computed: int = 0


class Driver:
    """Feeds sequences to a runner in random chunks, and keeps NaN in every block that nobody holds."""

    def __init__(self, runner: TorchRunner, dense: DenseLlama, choice: random.Random) -> None:
        self.runner = runner
        self.dense = dense
        self.choice = choice
        self.free = list(range(runner.block_count))
        choice.shuffle(self.free)
        for block in self.free:
            runner.cache.fill(block, math.nan)

    def step(self, sequences: list[Sequence], longest_chunk: int) -> None:
        works = [self.work(sequence, longest_chunk) for sequence in sequences]
        logits = self.runner.logits(Batch(tuple(works)))
        for row, (sequence, work) in enumerate(zip(sequences, works, strict=True)):
            sequence.computed += len(work.token_ids)
            expected = self.dense.logits(sequence.tokens[: sequence.computed])[-1]
            torch.testing.assert_close(logits[row], expected, atol=TOLERANCE, rtol=0)

    def work(self, sequence: Sequence, longest_chunk: int) -> Work:
        left = len(sequence.tokens) - sequence.computed
        count = min(left, 1 if self.choice.random() < 0.4 else self.choice.randint(1, longest_chunk))
        end = sequence.computed + count
        while len(sequence.blocks) * self.runner.block_tokens < end:
            sequence.blocks.append(self.free.pop())
        tokens = sequence.tokens[sequence.computed : end]
        return Work(1, tokens, sequence.computed, sequence.blocks, True, Sampling())

    def release(self, sequence: Sequence, kept: int = 0) -> None:
        for block in sequence.blocks[kept:]:
            self.runner.cache.fill(block, math.nan)
            self.free.append(block)
        self.choice.shuffle(self.free)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def dense(directory: Path) -> DenseLlama:
    return DenseLlama(directory)


@pytest.fixture(scope="module")
def runner(directory: Path) -> Iterator[TorchRunner]:
    runner = TorchRunner(directory, TorchOptions(dtype="fp32", block_count=96), BLOCK)
    yield runner
    runner.close()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), sequences=st.integers(1, 5), longest_chunk=st.integers(1, 40))
def test_paged_logits_equal_dense_ones(
    runner: TorchRunner, dense: DenseLlama, seed: int, sequences: int, longest_chunk: int
) -> None:
    choice = random.Random(seed)
    driver = Driver(runner, dense, choice)
    waiting = [
        Sequence(choice.choices(range(CONFIG["vocab_size"]), k=choice.randint(1, 50)))
        for _ in range(sequences + 3)
    ]
    running: list[Sequence] = []
    while waiting or running:
        while waiting and len(running) < sequences:
            running.append(waiting.pop())
        driver.step(choice.sample(running, choice.randint(1, len(running))), longest_chunk)
        for done in [sequence for sequence in running if sequence.computed == len(sequence.tokens)]:
            driver.release(done)
            running.remove(done)


def test_a_prefix_left_in_its_blocks_serves_another_sequence(runner: TorchRunner, dense: DenseLlama) -> None:
    driver = Driver(runner, dense, random.Random(1))
    prefix = [number % 60 for number in range(5 * BLOCK)]
    first = Sequence([*prefix, 3, 1, 4])
    while first.computed < len(first.tokens):
        driver.step([first], 7)
    driver.release(first, kept=5)
    hits = [
        Sequence([*prefix, 2, 7, token], list(first.blocks[:5]), computed=len(prefix)) for token in (5, 6)
    ]
    while running := [hit for hit in hits if hit.computed < len(hit.tokens)]:
        driver.step(running, 2)


def test_decodes_of_very_different_lengths_share_a_batch(runner: TorchRunner, dense: DenseLlama) -> None:
    driver = Driver(runner, dense, random.Random(2))
    sequences = [Sequence([(7 * n + length) % 61 for n in range(length)]) for length in (2, 40, 130, 131)]
    for sequence in sequences:
        sequence.blocks = [driver.free.pop() for _ in range(-(-len(sequence.tokens) // BLOCK))]
        work = Work(1, sequence.tokens[:-1], 0, sequence.blocks, False, Sampling())
        assert driver.runner.logits(Batch((work,))).shape == (0, 61)
        sequence.computed = len(sequence.tokens) - 1
    driver.step(sequences, 1)


def test_only_works_that_sample_get_logits(runner: TorchRunner, dense: DenseLlama) -> None:
    tokens = [5, 4, 3, 2, 1]
    works = [Work(n, tokens, 0, (2 * n, 2 * n + 1), n != 1, Sampling()) for n in range(3)]
    logits = runner.logits(Batch(tuple(works)))
    assert logits.shape == (2, CONFIG["vocab_size"])
    torch.testing.assert_close(logits[1], dense.logits(tokens)[-1], atol=TOLERANCE, rtol=0)


@pytest.mark.model
def test_the_real_model_equals_its_dense_forward() -> None:
    directory = bundled_model_directory()
    options = TorchOptions(dtype="fp32", block_count=48)
    driver = Driver(TorchRunner(directory, options), DenseLlama(directory), random.Random(3))
    sequences = [
        Sequence([(start + 997 * n) % 49152 for n in range(length)]) for start, length in ((7, 70), (9, 23))
    ]
    while running := [sequence for sequence in sequences if sequence.computed < len(sequence.tokens)]:
        driver.step(running, 40)
