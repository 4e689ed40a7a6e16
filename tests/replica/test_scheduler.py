"""The scheduler: exact under reuse, preemption and abort, counting honestly, leaking nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.sequence import Finish
from tests.replica.drives import BLOCK, Drive, answer_of


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 12, 13, 33])
def test_a_repeated_prompt_hits_all_whole_blocks_but_computes_a_token(length: int) -> None:
    drive = Drive()
    prompt = list(range(length))
    first, again, third = (drive.run(prompt) for _ in range(3))
    assert first == (0, answer_of(prompt, 3))
    assert again == third == ((length - 1) // BLOCK * BLOCK, answer_of(prompt, 3))
    assert drive.pool.free_count == drive.pool.block_count


def test_a_next_turn_hits_the_answer_too() -> None:
    drive = Drive()
    prompt = list(range(6))
    _, answer = drive.run(prompt, max_tokens=7)
    # 12 of the 13 tokens are computed: the last one sampled never is.
    cached, _ = drive.run([*prompt, *answer, 1, 2])
    assert cached == 12


def test_salts_do_not_share() -> None:
    drive = Drive()
    prompt = list(range(20))
    drive.run(prompt, salt="a")
    assert drive.run(prompt, salt="b")[0] == 0
    assert drive.run(prompt)[0] == 0
    assert drive.run(prompt, salt="a")[0] == 16


def test_a_short_prompt_names_its_first_block_with_its_keys() -> None:
    # The block fills only while decoding, and must still carry the salt.
    drive = Drive()
    _, answer = drive.run([1, 2], max_tokens=6, salt="a")
    whole = [1, 2, *answer]
    assert drive.run(whole, salt="b")[0] == 0
    assert drive.run(whole, salt="a")[0] == 4


def test_without_reuse_nothing_is_found_or_counted() -> None:
    drive = Drive(reuse=False)
    prompt = list(range(20))
    assert drive.run(prompt) == drive.run(prompt) == (0, answer_of(prompt, 3))
    assert drive.scheduler.counts.prefix_queries == 0
    assert drive.pool.name_count == 0


def test_decodes_come_before_prefill_and_fit_the_budget() -> None:
    drive = Drive(max_batch_tokens=8)
    drive.add([1, 2, 3], max_tokens=10)
    drive.step()
    drive.add(list(range(100, 130)), max_tokens=2)
    step = drive.step()
    assert step is not None
    assert [len(work.token_ids) for work in step.batch.works] == [1, 7]
    assert not step.batch.works[1].sample
    while step := drive.step():
        assert step.batch.tokens <= 8
    assert drive.answers[2] == answer_of(list(range(100, 130)), 2)


def test_first_come_first_served_up_to_max_running() -> None:
    drive = Drive(max_running=2, max_batch_tokens=64)
    ids = [drive.add([id, id + 1], max_tokens=3) for id in range(5)]
    step = drive.step()
    assert step is not None
    assert [sequence.id for sequence in step.sequences] == ids[:2]
    assert drive.scheduler.waiting_count == 3
    drive.finish()
    assert list(drive.finished) == ids


def test_end_tokens_stop() -> None:
    drive = Drive()
    expected = answer_of([1, 2, 3], 5)
    id = drive.add([1, 2, 3], max_tokens=5)
    drive.sequences[id].end_ids = frozenset({expected[2]})
    drive.finish()
    assert drive.answers[id] == expected[:3]
    assert drive.finished[id] is Finish.STOP


def test_preemption_recomputes_and_counts_neither_query_nor_hit() -> None:
    drive = Drive(block_count=12, max_batch_tokens=64)
    prompts = [[base * 100 + at for at in range(9)] for base in range(6)]
    ids = [drive.add(prompt, max_tokens=20) for prompt in prompts]
    drive.finish()
    counts = drive.scheduler.counts
    assert counts.preemptions > 0
    assert counts.recomputed_tokens > 0
    assert counts.prefix_hits == 0
    assert counts.prefix_queries == counts.prompt_tokens == counts.prefill_tokens == 54
    assert counts.generated_tokens == 120
    for id, prompt in zip(ids, prompts, strict=True):
        assert drive.answers[id] == answer_of(prompt, 20)
        assert drive.sequences[id].cached_tokens == 0
    assert drive.pool.free_count == drive.pool.block_count
    assert drive.load.seconds() == 0


def test_a_match_is_made_when_blocks_are_given_not_before() -> None:
    drive = Drive(block_count=8, max_batch_tokens=64)
    prefix = list(range(12))
    drive.run(prefix, max_tokens=1)
    # Holds six of eight blocks, and takes those of the prefix one by one as it grows.
    hog = drive.add([50 + at for at in range(20)], max_tokens=12)
    drive.step()
    late = drive.add([*prefix, 99, 98, 97, 96], max_tokens=2)
    while hog not in drive.finished:
        drive.step()
    drive.finish()
    assert drive.answers[late] == answer_of([*prefix, 99, 98, 97, 96], 2)
    assert drive.answers[hog] == answer_of([50 + at for at in range(20)], 12)


def test_hits_are_held_before_new_blocks_are_taken() -> None:
    drive = Drive(block_count=8, max_batch_tokens=64)
    prefix = list(range(20))
    drive.run(prefix, max_tokens=1)
    drive.run([900 + at for at in range(12)], max_tokens=1)
    # Five blocks are hits and three are new: just what there is, and the hits are next to be evicted.
    cached, answer = drive.run([*prefix, *range(500, 512)], max_tokens=1)
    assert cached == 20
    assert answer == answer_of([*prefix, *range(500, 512)], 1)


def test_many_partial_blocks_do_not_push_out_a_long_prompt() -> None:
    drive = Drive(block_count=12)
    long = list(range(32))
    drive.run(long, max_tokens=1)
    for base in range(50):
        drive.run([1000 + base], max_tokens=1)
    assert drive.run(long, max_tokens=1)[0] == 28


def test_an_abort_in_any_phase_frees_all() -> None:
    for steps in range(12):
        drive = Drive(block_count=10, max_batch_tokens=6)
        others = [drive.add([base] * 5, max_tokens=4) for base in (1, 2)]
        id = drive.add(list(range(10, 30)), max_tokens=4)
        for _ in range(steps):
            drive.step()
        drive.scheduler.drop(id)
        drive.scheduler.drop(id)
        drive.finish()
        assert drive.pool.free_count == drive.pool.block_count
        assert drive.load.seconds() == 0
        assert [drive.answers[other] for other in others] == [answer_of([base] * 5, 4) for base in (1, 2)]


def test_an_aborted_request_that_never_ran_leaves_the_hit_rate_alone() -> None:
    drive = Drive(max_running=1)
    drive.add([1, 2, 3], max_tokens=5)
    drive.step()
    waiting = drive.add(list(range(40)), max_tokens=5)
    drive.scheduler.drop(waiting)
    drive.finish()
    assert drive.scheduler.counts.prefix_queries == 3
    assert drive.scheduler.counts.prefill_tokens == 3


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "step", "step", "step", "abort"]),
            st.integers(1, 30),
            st.integers(1, 8),
            st.integers(0, 2),
        ),
        max_size=60,
    ),
    st.integers(10, 20),
)
def test_every_answer_is_that_of_a_run_without_cache(
    actions: list[tuple[str, int, int, int]], blocks: int
) -> None:
    drive = Drive(block_count=blocks, max_running=4, max_batch_tokens=9)
    prompts: dict[int, tuple[list[int], int]] = {}
    aborted = set()
    for action, length, tokens, family in actions:
        if action == "add":
            # Families share prefixes, and part at different places.
            prompt = [family * 7 + at for at in range(length)]
            prompts[drive.add(prompt, tokens)] = (prompt, tokens)
        elif action == "step":
            drive.step()
        elif prompts:
            id = sorted(prompts)[length % len(prompts)]
            drive.scheduler.drop(id)
            aborted.add(id)
        assert drive.load.seconds() >= 0
    drive.finish()
    assert drive.pool.free_count == drive.pool.block_count
    assert drive.load.seconds() == 0
    for id, (prompt, tokens) in prompts.items():
        expected = answer_of(prompt, tokens)
        assert drive.answers[id] == (expected[: len(drive.answers[id])] if id in aborted else expected)
