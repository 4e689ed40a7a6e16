"""The runner with a model: stored greedy answers, the batch contract, and its options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from replica.batch import Batch, Runner, Sampling, Work
from replica.model.bundled import bundled_model_directory
from replica.runner.torch_options import TorchOptions
from replica.runner.torch_runner import TorchRunner
from tests.replica.drives import Drive
from tests.replica.tiny_llama import write_tiny_llama

END = 2


def answer(
    runner: Runner, prompt: Sequence[int], limit: int, sampling: Sampling, first_block: int = 0
) -> list[int]:
    """Prefill `prompt` and decode up to `limit` tokens, in blocks from `first_block` on."""
    blocks = range(first_block, first_block + -(-(len(prompt) + limit) // runner.block_tokens))
    tokens: list[int] = []
    new, start = list(prompt), 0
    while len(tokens) < limit:
        [token] = runner.run(Batch((Work(1, new, start, blocks, True, sampling, len(tokens)),)))
        assert token is not None
        tokens.append(token)
        if token == END:
            break
        start += len(new)
        new = [token]
    return tokens


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[TorchRunner]:
    options = TorchOptions(dtype="fp32", block_count=30)
    runner = TorchRunner(write_tiny_llama(tmp_path), options, 4)
    yield runner
    runner.close()


def test_what_a_prewarm_computed_answers_as_if_it_had_been_asked(tiny: TorchRunner) -> None:
    prompt = [3 + (7 * at) % 50 for at in range(22)]
    drive = Drive(30, block_tokens=4, runner=tiny)
    cold, answer = drive.run(prompt, max_tokens=6)
    assert drive.pool.reset()
    drive.add(prompt[:20], prewarm=True)
    drive.finish()
    assert (cold, drive.run(prompt, max_tokens=6)) == (0, (20, answer))


ANSWERS = {
    "What is the capital of France?": (
        "504 3575 282 4649 314 7042 30 2",
        "The capital of France is Paris.",
    ),
    "What is gravity?": (
        "22007 6463 314 253 4959 1909 281 6944 338 6601 260 26589 282 42548 2952 411 260 4313 282 2389 30",
        "Gravity is a fundamental concept in physics that describes the curvature of spacetime caused by the "
        "presence of mass.",
    ),
    "Explain what a hash table is in two sentences.": (
        "49 15345 3252 314 253 940 2678 804 281 2583 2092 288 4249 284 19662 940",
        "A hash table is a data structure used in computer science to store and retrieve data",
    ),
}


@pytest.mark.model
def test_the_real_model_answers_as_stored() -> None:
    directory = bundled_model_directory()
    tokenizer: Tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    runner = TorchRunner(directory, TorchOptions(dtype="fp32", block_count=16))
    for question, (stored, text) in ANSWERS.items():
        ids = [int(number) for number in stored.split()]
        prompt = (
            "<|im_start|>system\n"
            "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        )
        assert answer(runner, tokenizer.encode(prompt).ids, len(ids), Sampling()) == ids
        assert tokenizer.decode(ids) == text


@pytest.mark.model
def test_the_real_model_answers_in_bf16() -> None:
    directory = bundled_model_directory()
    tokenizer: Tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    runner = TorchRunner(directory, TorchOptions(dtype="bf16", block_count=16))
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    assert "Paris" in tokenizer.decode(answer(runner, tokenizer.encode(prompt).ids, 12, Sampling()))


def test_the_answer_keeps_the_order_of_the_works(tiny: TorchRunner) -> None:
    prompts = [[5, 6, 7], [9], [1, 2, 3, 4, 5, 6]]
    alone = [answer(tiny, prompt, 1, Sampling())[0] for prompt in prompts]
    works = [Work(n, prompt, 0, (2 * n, 2 * n + 1), True, Sampling()) for n, prompt in enumerate(prompts)]
    works.insert(1, Work(9, [8, 8], 0, (20,), False, Sampling()))
    assert tiny.run(Batch(tuple(works))) == [alone[0], None, alone[1], alone[2]]


def test_a_batch_that_samples_nothing_answers_none(tiny: TorchRunner) -> None:
    assert tiny.run(Batch((Work(1, [1, 2], 0, (0,), False, Sampling()),))) == [None]
    assert tiny.run(Batch(())) == []


def test_a_recomputed_sequence_draws_the_same_tokens(tiny: TorchRunner) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.95, seed=11)
    prompt = [4, 8, 15, 16]
    tokens = answer(tiny, prompt, 20, sampling)
    # Preempted after 12 tokens: everything known is prefilled again elsewhere, and goes on as before.
    known = [*prompt, *tokens[:12]]
    [token] = tiny.run(Batch((Work(1, known, 0, range(20, 28), True, sampling, 12),)))
    assert token == tokens[12]
    assert answer(tiny, prompt, 20, replace(sampling, seed=12)) != tokens


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (Work(1, [], 0, (0,), True, Sampling()), "without tokens"),
        (Work(1, [1], -1, (0,), True, Sampling()), "negative"),
        (Work(1, [1] * 5, 0, (0,), True, Sampling()), "cannot hold"),
        (Work(1, [1], 0, (30,), True, Sampling()), "block id"),
        (Work(1, [1], 0, (-1,), True, Sampling()), "block id"),
        (Work(1, [61], 0, (0,), True, Sampling()), "token outside"),
        (Work(1, [-1], 0, (0,), True, Sampling()), "token outside"),
        (Work(1, [1] * 121, 0, range(30), True, Sampling()), "context"),
    ],
)
def test_a_batch_that_cannot_be_right_is_refused(tiny: TorchRunner, work: Work, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tiny.run(Batch((work,)))
    assert tiny.run(Batch((Work(1, [1], 0, (0,), False, Sampling()),))) == [None]


def test_the_context_is_what_model_blocks_and_option_allow(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path)

    def context(block_tokens: int = 16, **options: object) -> int:
        return TorchRunner(directory, TorchOptions.model_validate(options), block_tokens).context_tokens

    assert context(block_count=100) == 256
    assert context(block_count=3, block_tokens=8) == 24
    assert context(block_count=100, context_tokens=99) == 99
    assert context(block_count=100, context_tokens=999) == 256


def test_a_closed_runner_says_so(tmp_path: Path) -> None:
    runner = TorchRunner(write_tiny_llama(tmp_path), TorchOptions(block_count=2))
    runner.close()
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.run(Batch((Work(1, [1], 0, (0,), False, Sampling()),)))


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "int8"},
        {"device": "tpu"},
        {"threads": 0},
        {"block_count": 0},
        {"context_tokens": 0},
        {"blocks": 3},
    ],
)
def test_options_out_of_bounds_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TorchOptions.model_validate(options)
