"""Imported Azure CSVs: times and lengths, and nothing shared."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from loadgen.traces.importers.azure import import_azure
from loadgen.traces.request_log import BadLines
from loadgen.traces.trace import TraceError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:02.4799600,512,8\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("compressed", [False, True])
def test_rows_become_requests(tmp_path: Path, end: str, compressed: bool) -> None:
    data = (HEADER + ROWS).replace("\n", end).encode()
    (tmp_path / "azure.csv.gz").write_bytes(gzip.compress(data) if compressed else data)
    trace = import_azure(tmp_path / "azure.csv.gz")
    assert trace.name == "azure"
    assert [(r.arrival_seconds, r.prompt_tokens, r.output_tokens) for r in trace.requests] == [
        (0, 512, 8),
        (1.5, 4808, 10),
    ]
    assert trace.distinct_blocks() == 1 + 10
    assert trace.hit_bound() == 0


@pytest.mark.parametrize(
    "row", ["yesterday,1,1", "2023-11-16,x,1", "2023-11-16,0,1", "2023-11-16,1,-1", "1,2"]
)
def test_bad_rows_are_counted(tmp_path: Path, row: str) -> None:
    (tmp_path / "a.csv").write_text(HEADER + row + "\n" + ROWS)
    bad = BadLines()
    assert len(import_azure(tmp_path / "a.csv", bad=bad).requests) == 2
    assert bad.count == 1
    assert f"{tmp_path / 'a.csv'}:2: " in bad.first[0]


def test_other_files_are_refused(tmp_path: Path) -> None:
    for text, message in (
        ("a,b,c\n1,2,3\n", "does not begin with the columns"),
        (HEADER, "has no requests"),
        (HEADER + "x\n", "has no requests: .*a.csv:2"),
        (HEADER + ROWS, "more than 1 requests"),
    ):
        (tmp_path / "a.csv").write_text(text)
        with pytest.raises(TraceError, match=message):
            import_azure(tmp_path / "a.csv", max_requests=1)
