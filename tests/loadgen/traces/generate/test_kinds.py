"""Generators: the same seed gives the same trace, another seed another one of the same kind."""

from __future__ import annotations

import pytest

from loadgen.traces.catalog import open_trace
from loadgen.traces.generate.kinds import KINDS, generate
from loadgen.traces.summary import summarise
from loadgen.traces.trace import TraceError

SMALL = {"chat": {"conversations": 20}, "agent": {"sessions": 50}}
LIKE = {
    "agent": "agent",
    "conversation": "conversation",
    "hotspot": "hotspot",
    "synthetic": "synthetic",
    "toolagent": "toolagent_recon",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_determines_the_trace(kind: str) -> None:
    options = SMALL.get(kind, {"requests": 500})
    trace = generate(kind, 3, **options)
    assert trace == generate(kind, 3, **options)
    assert trace.requests != generate(kind, 4, **options).requests
    assert trace.name == kind


@pytest.mark.parametrize("kind", LIKE)
def test_fresh_traces_are_like_the_shipped_one(kind: str) -> None:
    shipped = summarise(open_trace(LIKE[kind]))
    options = {} if kind == "agent" else {"requests": shipped.requests}
    fresh = summarise(generate(kind, 7, **options))
    assert fresh.block_tokens == shipped.block_tokens
    assert fresh.requests == pytest.approx(shipped.requests, rel=0.15)
    assert fresh.duration_seconds == pytest.approx(shipped.duration_seconds, rel=0.15)
    assert fresh.prompt.mean == pytest.approx(shipped.prompt.mean, rel=0.15)
    assert fresh.prompt.p50 == pytest.approx(shipped.prompt.p50, rel=0.25)
    assert fresh.prompt.p99 == pytest.approx(shipped.prompt.p99, rel=0.35)
    assert fresh.output.mean == pytest.approx(shipped.output.mean, rel=0.1)
    assert fresh.hit_bound == pytest.approx(shipped.hit_bound, abs=0.06)
    assert fresh.distinct_blocks == pytest.approx(shipped.distinct_blocks, rel=0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_has_one_parent(kind: str) -> None:
    parents: dict[int, int | None] = {}
    for request in generate(kind, 1, **SMALL.get(kind, {"requests": 500})).requests:
        parent = None
        for block in request.block_ids:
            assert parents.setdefault(block, parent) == parent
            parent = block


def test_unknown_kinds_and_options_are_told() -> None:
    with pytest.raises(TraceError, match=r"no kind of trace 'nope'.*agent, chat"):
        generate("nope", 0)
    with pytest.raises(TraceError, match="requests: Input should be greater than or equal to 1"):
        generate("hotspot", 0, requests=0)
    with pytest.raises(TraceError, match="wheels"):
        generate("chat", 0, wheels=4)
