"""What is remembered of prompts: no more than is allowed, and no trace of what was forgotten."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from router.observe.layout.cause import Cause
from router.observe.layout.memory import LayoutMemory
from tests.router.observe.layout.prompts import body, chat, conversation, prose, sketch_body, system, user


def test_a_conversation_counts_once() -> None:
    memory = LayoutMemory(1 << 30, 1000)
    for request in conversation(10, lambda turn: [system(prose("rules", 10))]):
        memory.see(sketch_body(request, memory.part))
    assert len(memory) == 1
    memory.see(sketch_body(body([system(prose("rules", 10)), *chat(1, "other")]), memory.part))
    assert len(memory) == 2


def test_parts_are_sketched_once() -> None:
    memory = LayoutMemory(1 << 30, 1000)
    first, second = conversation(2, lambda turn: [system(prose("rules", 10))])
    one = sketch_body(first, memory.part)
    memory.see(one)
    two = sketch_body(second, memory.part)
    assert two.messages[0] is one.messages[0]
    assert two.messages[1] is one.messages[1]


def test_bounds_hold_and_nothing_is_left_behind() -> None:
    random = Random(1)
    memory = LayoutMemory(300_000, 40)
    largest = 0
    for number in range(400):
        rules = system(f"{number}\n" + prose("rules" + str(random.randrange(5)), 20))
        memory.see(sketch_body(body([rules, *chat(1 + number % 4, f"c{random.randrange(60)}")]), memory.part))
        assert len(memory) <= 40
        largest = max(largest, memory.held_bytes)
    assert 150_000 < largest <= 300_000
    for id in list(memory._entries)[:]:
        memory._forget(id)
    assert (memory.held_bytes, memory._parts, memory._index) == (0, {}, {})


@given(
    st.lists(
        st.lists(st.sampled_from(["a" * 70, "b" * 70, "c " * 40, "d1 " * 40, "d2 " * 40, "e"]), max_size=6)
    )
)
@settings(max_examples=150, deadline=None)
def test_any_row_of_prompts_adds_up(prompts: list[list[str]]) -> None:
    """No more is hit and lost of a prompt than it has, and a prompt seen before is hit as a whole."""
    memory = LayoutMemory(1 << 30, 1000)
    for texts in prompts:
        request = body([system("s" * 40), *(user(text) for text in texts)])
        sketch = sketch_body(request, memory.part)
        found = memory.see(sketch)
        assert found.hit_bytes + sum(lost for _, lost in found.lost) <= sketch.size
        again = memory.see(sketch)
        assert (again.hit_bytes, again.lost) == (sketch.size, ())


def test_turns_of_many_interleaved_conversations_find_their_own() -> None:
    memory = LayoutMemory(1 << 30, 1000)
    rules = ".\n" + prose("rules", 20)
    lost = []
    for turn in range(5):
        for number, name in enumerate(("alpha", "bravo", "charlie", "delta")):
            head = system(f"It is {turn:02}:0{number}:11{rules}")
            request = body([head, *chat(turn + 1, name)])
            lost.append((turn, memory.see(sketch_body(request, memory.part)).lost))
    assert len(memory) == 4
    for turn, losses in lost[4:]:
        ((divergence, count),) = losses
        assert divergence.cause is Cause.DATE
        # The whole conversation, not just the system prompt that all share.
        assert count > len(rules) + 180 * turn
