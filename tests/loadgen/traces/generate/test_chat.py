"""Chats: every turn extends the one before, and all begin alike."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from loadgen.traces.generate.chat import ChatOptions, generate_chat
from loadgen.traces.trace import TraceError, TraceRequest


def test_turns_extend_one_another_behind_a_shared_prompt() -> None:
    options = ChatOptions(conversations=10, turns=5, system_tokens=304, new_tokens=40, output_tokens=10)
    trace = generate_chat(options, 2)
    chats: dict[str | None, list[TraceRequest]] = defaultdict(list)
    for request in trace.requests:
        chats[request.session].append(request)
    assert len(chats) == 10
    for turns in chats.values():
        assert [turn.prompt_tokens for turn in turns] == [344, 384, 424, 464, 504]
        for before, after in pairwise(turns):
            full = trace.full_blocks(before)
            assert after.block_ids[: len(full)] == full
    firsts = [trace.full_blocks(turns[0]) for turns in chats.values()]
    assert len({first[:19] for first in firsts}) == 1
    assert len({first[19] for first in firsts}) == 10


def test_chats_are_interleaved() -> None:
    trace = generate_chat(ChatOptions(conversations=10, turns=5), 2)
    sessions = [request.session for request in trace.requests]
    assert sum(one == after for one, after in pairwise(sessions)) < 20


def test_answers_cannot_exceed_what_a_turn_adds() -> None:
    with pytest.raises(TraceError, match="output_tokens"):
        generate_chat(ChatOptions(new_tokens=40), 0)
    assert len(generate_chat(ChatOptions(new_tokens=40, turns=1, conversations=3), 0).requests) == 3
