"""Imported request logs: equal prefixes share ids, by bytes or by a tokenizer; times and limits are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.traces.importers.arrivals import ArrivalOptions
from loadgen.traces.importers.naming import PromptNaming
from loadgen.traces.importers.requests import import_requests
from loadgen.traces.request_log import BadLines
from loadgen.traces.trace import Trace, TraceError
from tests.tiny_tokenizer import tiny_tokenizer, write_tiny_tokenizer

SYSTEM = {"role": "system", "content": "You answer questions about rivers, briefly and in English. " * 8}
ARRIVALS = ArrivalOptions()


def chat(*said: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]
    return {"model": "m", "messages": [SYSTEM, *messages], **more}


def write(path: Path, *records: object) -> Path:
    path.write_bytes(b"\n".join(orjson.dumps(record) for record in records))
    return path


def shared(trace: Trace, one: int, other: int) -> int:
    ids = [trace.full_blocks(trace.requests[at]) for at in (one, other)]
    return next((at for at, pair in enumerate(zip(*ids, strict=False)) if pair[0] != pair[1]), len(ids[0]))


@pytest.mark.parametrize("tokenized", [False, True])
def test_equal_prefixes_share_ids(tmp_path: Path, tokenized: bool) -> None:
    directory = write_tiny_tokenizer(tmp_path / "model") if tokenized else None
    log = write(
        tmp_path / "log.jsonl",
        chat("Where does the Rhine end?"),
        chat("Where does the Rhine end?", "In the sea.", "Which sea is that? " * 5),
        chat("How long is the Elbe?"),
        chat("Where does the Rhine end?", cache_salt="other tenant"),
    )
    trace = import_requests(log, PromptNaming(16, directory), ARRIVALS)
    first = trace.requests[0]
    assert trace.name == "log"
    # The answer's opening of the first request is that of the second, too.
    assert shared(trace, 0, 1) == len(trace.full_blocks(first))
    assert 0 < shared(trace, 0, 2) < len(trace.full_blocks(first))
    assert shared(trace, 0, 3) == 0
    if tokenized:
        expected = len(tiny_tokenizer().tokenizer.encode(SYSTEM["content"]).ids)
        assert 0 < first.prompt_tokens - expected < 40


def test_anthropic_and_completion_bodies_are_named(tmp_path: Path) -> None:
    long = "Tell me all about the Danube and its many bridges. " * 10
    message = {"model": "m", "system": SYSTEM["content"], "messages": [{"role": "user", "content": long}]}
    text = {"model": "m", "prompt": long}
    tokens = {"model": "m", "prompt": list(range(100))}
    trace = import_requests(
        write(tmp_path / "log", message, message, text, text, tokens, tokens), PromptNaming(16), ARRIVALS
    )
    for at in (0, 2, 4):
        full = len(trace.full_blocks(trace.requests[at]))
        assert full > 5
        assert shared(trace, at, at + 1) == full
    assert trace.requests[4].prompt_tokens == 100


def test_times_count_from_the_first_and_are_sorted(tmp_path: Path) -> None:
    lines = [{"timestamp": 100 + at, "body": chat(f"question {at}", max_tokens=at)} for at in (7, 3, 5)]
    trace = import_requests(write(tmp_path / "log", *lines), PromptNaming(16), ARRIVALS, output_tokens=4)
    assert [request.arrival_seconds for request in trace.requests] == [0, 2, 4]
    assert [request.output_tokens for request in trace.requests] == [3, 4, 4]


def test_times_are_drawn_where_any_is_missing(tmp_path: Path) -> None:
    log = write(tmp_path / "log", {"timestamp": 100, "body": chat("a")}, chat("b"), chat("c"))
    trace = import_requests(log, PromptNaming(16), ArrivalOptions(seed=1))
    times = [request.arrival_seconds for request in trace.requests]
    assert times[0] == 0
    assert times == sorted(set(times))
    assert trace == import_requests(log, PromptNaming(16), ArrivalOptions(seed=1))
    assert trace != import_requests(log, PromptNaming(16), ArrivalOptions(seed=2))


def test_what_cannot_be_named_is_counted(tmp_path: Path) -> None:
    bad = BadLines()
    log = write(
        tmp_path / "log",
        chat("a"),
        {"model": "m", "messages": []},
        {"messages": [{"role": "user", "content": "no model"}]},
        {"model": "m", "input": "for the responses API"},
        {"nothing": "known"},
    )
    trace = import_requests(log, PromptNaming(16), ARRIVALS, bad=bad)
    assert len(trace.requests) == 1
    assert bad.count == 4
    with pytest.raises(TraceError, match=r"no requests that can be named.*'model'"):
        import_requests(write(tmp_path / "log", {"prompt": "x"}), PromptNaming(16), ARRIVALS)


def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no tokenizer can be read"):
        PromptNaming(16, tmp_path)
