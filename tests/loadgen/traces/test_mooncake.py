"""Mooncake's format: round trips, compression, and errors that name the line."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.traces.mooncake import read_mooncake, write_mooncake
from loadgen.traces.trace import Trace, TraceError, TraceRequest

GOOD: dict[str, Any] = {
    "timestamp": 5,
    "input_length": 600,
    "output_length": 3,
    "hash_ids": [1, 2],
}


def write(path: Path, *records: object) -> Path:
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return path


def test_the_original_form_is_read(tmp_path: Path) -> None:
    trace = read_mooncake(write(tmp_path / "t.jsonl", GOOD, {**GOOD, "timestamp": 0, "session_id": 7}))
    assert (trace.name, trace.block_tokens) == ("t", 512)
    assert trace.requests == [
        TraceRequest(0.0, 600, 3, (1, 2), "7"),
        TraceRequest(0.005, 600, 3, (1, 2), None),
    ]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_a_trace_comes_back_as_it_was(tmp_path: Path, suffix: str) -> None:
    requests = [TraceRequest(0.5, 20, 2, (3, 4), "a"), TraceRequest(1.25, 32, 0, (3, 5))]
    path = tmp_path / f"t.jsonl{suffix}"
    write_mooncake(Trace("t", 16, requests), path)
    assert read_mooncake(path) == Trace("t", 16, requests)
    first = path.read_bytes()
    write_mooncake(Trace("t", 16, requests), path)
    assert path.read_bytes() == first


def test_compression_is_told_by_content_not_name(tmp_path: Path) -> None:
    line = orjson.dumps(GOOD)
    for name, data in (("a.jsonl", gzip.compress(line)), ("b.gz", lzma.compress(line)), ("c.xz", line)):
        (tmp_path / name).write_bytes(data)
        assert len(read_mooncake(tmp_path / name).requests) == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "a request is a JSON object"),
        ({**GOOD, "timestamp": "now"}, "'timestamp' must be a number"),
        ({**GOOD, "timestamp": -1}, "arrival"),
        ({**GOOD, "input_length": 0}, "'input_length' must be a whole number from 1"),
        ({**GOOD, "input_length": 600.5}, "'input_length'"),
        ({**GOOD, "input_length": True}, "'input_length'"),
        ({**GOOD, "output_length": -1}, "'output_length'"),
        ({**GOOD, "hash_ids": None}, "'hash_ids' must be a list"),
        ({**GOOD, "hash_ids": [1, "2"]}, "'hash_ids' must be a list of whole numbers"),
        ({**GOOD, "hash_ids": [1, True]}, "'hash_ids' must be a list of whole numbers"),
        ({**GOOD, "hash_ids": [1, 2, 3]}, "3 hash_ids run beyond 600 tokens in blocks of 512"),
        ({**GOOD, "hash_ids": []}, "0 hash_ids run short of 600 tokens"),
        ({**GOOD, "block_size": 0}, "'block_size'"),
        ({**GOOD, "block_size": 300}, "block_size is 300, but 512 in the lines before"),
        ({"timestamp": 1}, "'input_length'"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(tmp_path: Path, record: object, message: str) -> None:
    with pytest.raises(TraceError, match=f"t.jsonl:2: .*{message}"):
        read_mooncake(write(tmp_path / "t.jsonl", GOOD, record))


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for data, message in (
        (b"", "has no requests"),
        (b"\n\n", "has no requests"),
        (b"hello\n", "t.jsonl:1: not JSON"),
        (b"\xff\xfe\n", "t.jsonl:1: not JSON"),
        (gzip.compress(orjson.dumps(GOOD))[:-10], "cannot be decompressed"),
        (lzma.compress(orjson.dumps(GOOD))[:-10], "cannot be decompressed"),
        (b"\x1f\x8bnonsense", "t.jsonl cannot be"),
    ):
        path.write_bytes(data)
        with pytest.raises(TraceError, match=message):
            read_mooncake(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_mooncake(tmp_path / "missing")
    with pytest.raises(TraceError, match="cannot be read"):
        read_mooncake(tmp_path)
    with pytest.raises(TraceError, match="cannot be written"):
        write_mooncake(Trace("t", 16, []), tmp_path / "no" / "where.jsonl")


def test_lines_and_requests_are_bounded(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", GOOD, GOOD, GOOD)
    with pytest.raises(TraceError, match="more than 2 requests"):
        read_mooncake(path, max_requests=2)
    with pytest.raises(TraceError, match=r"t.jsonl:1: the line is longer than 20 bytes"):
        read_mooncake(path, max_line_bytes=20)
    assert len(read_mooncake(path, max_requests=3).requests) == 3


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(GOOD)), inner),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from([*GOOD, "block_size", "session_id"]), _JSON))
def test_whatever_a_line_holds_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, change: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("t") / "t.jsonl"
    try:
        trace = read_mooncake(write(path, {**GOOD, **change}))
    except TraceError:
        return
    assert len(trace.requests) == 1
