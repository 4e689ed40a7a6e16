"""Every uncached token has one cause, by the stated precedence, and the sums are exact."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.observe.attribution import Cause, Evidence, Misses, attribute

DEPTHS = st.integers(0, 400)


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    return Evidence(
        prompt_tokens=draw(st.integers(1, 300)),
        block_tokens=draw(st.sampled_from((1, 16, 64))),
        hit_tokens=draw(st.integers(0, 320)),
        told=draw(DEPTHS),
        held_elsewhere=draw(DEPTHS),
        held_by_departed=draw(DEPTHS),
        evicted=draw(st.none() | DEPTHS),
        seen=draw(DEPTHS),
        seen_other_keys=draw(DEPTHS),
    )


def cause_of(token: int, evidence: Evidence) -> Cause:
    """The precedence, word for word, for one token."""
    last = (evidence.prompt_tokens - 1) // evidence.block_tokens * evidence.block_tokens
    if token >= last:
        return Cause.PARTIAL_BLOCK
    if token < evidence.told:
        return Cause.STALE_DIGEST
    if token < evidence.held_elsewhere:
        return Cause.ROUTED_BY_LOAD
    if token < evidence.held_by_departed:
        return Cause.ROUTED_BY_MEMBERSHIP
    if evidence.evicted is not None and token < max(evidence.evicted, evidence.seen):
        return Cause.EVICTED
    if token < evidence.seen:
        return Cause.UNKNOWN
    if token < evidence.seen_other_keys:
        return Cause.KEY_MISMATCH
    return Cause.COLD


@settings(max_examples=300, deadline=None)
@given(evidences())
def test_each_token_gets_the_first_cause_that_holds(evidence: Evidence) -> None:
    expected = dict.fromkeys(Cause, 0)
    for token in range(evidence.hit_tokens, evidence.prompt_tokens):
        expected[cause_of(token, evidence)] += 1
    assert dict(attribute(evidence)) == expected


@settings(max_examples=200, deadline=None)
@given(evidences())
def test_sums_are_exact_and_nothing_is_negative(evidence: Evidence) -> None:
    misses = attribute(evidence)
    assert misses.total == max(0, evidence.prompt_tokens - evidence.hit_tokens)
    assert all(tokens >= 0 for _, tokens in misses)
    assert sum(misses.to_json().values()) == misses.total


def test_a_prompt_of_whole_blocks_computes_its_last() -> None:
    # 64 tokens in blocks of 16, 48 of them hit: nothing more can hit.
    evidence = Evidence(prompt_tokens=64, block_tokens=16, hit_tokens=48, told=64, seen=64)
    assert attribute(evidence) == Misses(partial_block=16)


def test_each_cause_can_be_the_only_one() -> None:
    plain = Evidence(prompt_tokens=49, block_tokens=16, hit_tokens=0, evicted=0)
    assert attribute(plain) == Misses(partial_block=1, cold=48)
    for change, cause in (
        ({"told": 48}, Cause.STALE_DIGEST),
        ({"held_elsewhere": 48}, Cause.ROUTED_BY_LOAD),
        ({"held_by_departed": 48}, Cause.ROUTED_BY_MEMBERSHIP),
        ({"evicted": 48}, Cause.EVICTED),
        ({"seen": 48}, Cause.EVICTED),
        ({"seen": 48, "evicted": None}, Cause.UNKNOWN),
        ({"seen_other_keys": 48}, Cause.KEY_MISMATCH),
    ):
        assert attribute(plain._replace(**change)) == Misses(partial_block=1, **{cause: 48})


def test_what_another_replica_held_counts_before_what_the_chosen_one_evicted() -> None:
    evidence = Evidence(
        prompt_tokens=161, block_tokens=16, hit_tokens=32, held_elsewhere=96, evicted=128, seen=144
    )
    assert attribute(evidence) == Misses(partial_block=1, routed_by_load=64, evicted=48, cold=16)
