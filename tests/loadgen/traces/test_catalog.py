"""The shipped traces, and opening by name or path."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.traces.catalog import SHIPPED, open_trace
from loadgen.traces.mooncake import write_mooncake
from loadgen.traces.trace import Trace, TraceError, TraceRequest

EXPECTED = {
    # Requests, tokens in a block, hit bound as published with the traces.
    "conversation": (12_031, 512, 0.374),
    "synthetic": (3_993, 512, 0.651),
    "toolagent_recon": (25_251, 512, 0.557),
    "hotspot": (12_000, 128, 0.909),
    "agent": (13_913, 128, 0.939),
}


def test_all_shipped_traces_are_known() -> None:
    assert set(SHIPPED) == set(EXPECTED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_trace_has_its_size_and_bound(name: str) -> None:
    trace = open_trace(name)
    requests, block_tokens, bound = EXPECTED[name]
    assert trace.name == name
    assert (len(trace.requests), trace.block_tokens) == (requests, block_tokens)
    assert trace.hit_bound() == pytest.approx(bound, abs=0.001)


def test_the_conversation_trace_is_spread_inside_its_bins() -> None:
    binned, spread = open_trace("conversation", spread=False), open_trace("conversation")
    assert len({one.arrival_seconds for one in binned.requests}) == 1180
    assert len({one.arrival_seconds for one in spread.requests}) > 12_000
    pairs = zip(binned.requests, spread.requests, strict=True)
    assert max(abs(after.arrival_seconds - before.arrival_seconds - 1.5) for before, after in pairs) < 1.51
    assert spread.requests == open_trace("conversation").requests
    assert spread.requests != open_trace("conversation", seed=1).requests


def test_spreading_what_is_not_binned_is_refused() -> None:
    with pytest.raises(TraceError, match="not in bins"):
        open_trace("hotspot", spread=True)


def test_a_file_is_opened_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl.gz"
    write_mooncake(Trace("x", 16, [TraceRequest(0, 16, 1, (7,), "a")]), path)
    assert open_trace(path) == open_trace(str(path))
    assert open_trace(path).name == "mine"


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(TraceError, match=r"no trace 'nope'.*agent, conversation"):
        open_trace("nope")


def test_the_notice_names_the_source_and_licence() -> None:
    from importlib.resources import files

    notice = (files("loadgen.traces") / "data" / "NOTICE").read_text()
    for words in ("kvcache-ai/Mooncake", "FAST25-release/traces", "3b5a594", "Apache License, Version 2.0"):
        assert words in notice
