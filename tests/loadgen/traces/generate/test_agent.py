"""Agents: compaction breaks the prefix once or every turn, and sub-agents share their parent's."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from loadgen.traces.generate.agent import AgentOptions, generate_agent
from loadgen.traces.trace import Trace, TraceRequest


def sessions(trace: Trace) -> dict[str, list[TraceRequest]]:
    turns: dict[str, list[TraceRequest]] = defaultdict(list)
    for request in trace.requests:
        turns[request.session or ""].append(request)
    return turns


def kept(trace: Trace, before: TraceRequest, after: TraceRequest) -> int:
    """Count the blocks that both begin with."""
    pairs = zip(trace.full_blocks(before), after.block_ids, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), len(trace.full_blocks(before)))


def breaks(trace: Trace) -> list[int]:
    """Count, for each session, the turns that do not extend the one before."""
    return [
        sum(kept(trace, before, after) < len(trace.full_blocks(before)) for before, after in pairwise(turns))
        for turns in sessions(trace).values()
    ]


LONG = {"sessions": 60, "mean_turns": 30.0, "tool_prompts": 3}


def test_without_compaction_nothing_breaks() -> None:
    assert set(breaks(generate_agent(AgentOptions(**LONG), 1))) == {0}


def test_one_clean_break_costs_far_less_than_a_break_every_turn() -> None:
    once = generate_agent(AgentOptions(**LONG, compaction="once"), 1)
    every = generate_agent(AgentOptions(**LONG, compaction="every_turn"), 1)
    assert max(request.prompt_tokens for request in once.requests) <= 24_576
    assert max(request.prompt_tokens for request in every.requests) <= 24_576
    assert 0 < sum(breaks(once)) < sum(breaks(every)) / 3
    assert every.hit_bound() < once.hit_bound() - 0.05


def test_a_break_keeps_the_tool_prompt() -> None:
    trace = generate_agent(AgentOptions(**LONG, compaction="every_turn"), 1)
    least = 5600 // trace.block_tokens
    for turns in sessions(trace).values():
        for before, after in pairwise(turns):
            assert kept(trace, before, after) >= least


def test_behind_the_limit_a_window_breaks_every_turn() -> None:
    trace = generate_agent(AgentOptions(**LONG, compaction="every_turn"), 1)
    full = 0
    for turns in sessions(trace).values():
        broken = False
        for before, after in pairwise(turns):
            breaks_now = kept(trace, before, after) < len(trace.full_blocks(before))
            # A window that dropped a long message may have room for a turn or two again.
            full += broken and breaks_now
            broken = breaks_now
    assert full > 100


def test_sub_agents_go_on_from_the_parents_prompt_at_once() -> None:
    trace = generate_agent(AgentOptions(sessions=40, sub_agents=3, sub_agent_turns=2), 5)
    turns = sessions(trace)
    children = {name: requests for name, requests in turns.items() if "/" in name}
    assert children
    for name, requests in children.items():
        parent = turns[name.split("/")[0]]
        before = [request for request in parent if request.arrival_seconds < requests[0].arrival_seconds][-1]
        assert len(requests) == 2
        assert kept(trace, before, requests[0]) == len(trace.full_blocks(before))
        siblings = [
            other[0].arrival_seconds
            for sibling, other in children.items()
            if sibling.rpartition(".")[0] == name.rpartition(".")[0]
        ]
        assert len(siblings) == 3
        assert len(set(siblings)) == 1
        # The parent waits for all of its children.
        later = [request for request in parent if request.arrival_seconds > before.arrival_seconds]
        assert all(request.arrival_seconds > requests[-1].arrival_seconds for request in later)
