"""Answers that were taken up, at the scheduler: computed like prompts, counted as what they are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from replica.api import Resumed
from replica.batch import Sampling
from replica.load import PrefillShape
from replica.resume import take_up
from replica.sequence import Sequence
from router.chain.keys import Keys
from router.wire.report import PrefillCost
from tests.replica.drives import BLOCK, Drive, answer_of

VOCABULARY = 2**32


def taken_up(drive: Drive, prompt: list[int], answer: list[int], max_tokens: int) -> Sequence:
    """Queue a sequence that others began; return it."""
    keys = Keys("m")
    sequence = Sequence(
        list(prompt),
        len(prompt),
        list(drive.namer.chain_of_tokens(prompt, keys).names),
        {0: keys.of_first_block()},
        Sampling(),
        max_tokens,
        id=1000 + len(drive.sequences),
    )
    take_up(sequence, Resumed("x", 1, tuple(answer), False), VOCABULARY, drive.namer, BLOCK)
    drive.sequences[sequence.id], drive.answers[sequence.id] = sequence, []
    drive.scheduler.foresee(sequence)
    drive.scheduler.add(sequence)
    return sequence


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 14), st.integers(0, 9)), min_size=1, max_size=4),
    st.integers(8, 24),
    st.booleans(),
)
def test_they_go_on_as_they_would_have(cuts: list[tuple[int, int]], blocks: int, reuse: bool) -> None:
    drive = Drive(blocks, reuse=reuse)
    wanted, sequences = [], []
    for number, (length, cut) in enumerate(cuts):
        prompt = [number % 2 + 1, *range(5, 4 + length)]
        answer = answer_of(prompt, 10)
        wanted.append(answer[cut:])
        sequences.append(taken_up(drive, prompt, answer[:cut], 10))
    drive.finish()
    assert [drive.answers[sequence.id] for sequence in sequences] == wanted
    assert drive.pool.free_count == blocks
    assert drive.load.seconds() == 0
    counts = drive.scheduler.counts
    assert counts.generated_tokens == sum(map(len, wanted))
    assert counts.prompt_tokens == sum(sequence.prompt_tokens for sequence in sequences)


def test_what_others_computed_of_an_answer_is_work_here() -> None:
    drive = Drive()
    sequence = taken_up(drive, list(range(8)), [9] * 24, 30)
    assert len(sequence.names) == 32 // BLOCK
    assert drive.load.seconds() == PrefillShape.of(32, 0).seconds(PrefillCost())


def test_an_answer_that_is_held_is_found() -> None:
    drive = Drive()
    prompt = list(range(6))
    _, answer = drive.run(prompt, max_tokens=12)
    sequence = taken_up(drive, prompt, answer[:10], 12)
    drive.finish()
    assert drive.answers[sequence.id] == answer[10:]
    # Of 16 tokens that are known one must be computed, and with it its block.
    assert sequence.cached_tokens == 12
