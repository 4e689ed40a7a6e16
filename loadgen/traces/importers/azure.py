"""Imports Azure's public traces: times and lengths only, so that no two prompts share anything."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from loadgen.traces.generate.context import BlockIds, Context
from loadgen.traces.lines import read_lines, stem
from loadgen.traces.mooncake import DEFAULT_BLOCK_TOKENS, MAX_PROMPT_TOKENS, MAX_REQUESTS
from loadgen.traces.request_log import BadLines
from loadgen.traces.trace import Trace, TraceError, TraceRequest

_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_MAX_ROW_BYTES = 4096


def import_azure(
    path: Path,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
    max_requests: int = MAX_REQUESTS,
    bad: BadLines | None = None,
) -> Trace:
    """Return the trace of a CSV with TIMESTAMP, ContextTokens, GeneratedTokens (plain, gzip or xz).

    Every block is unique. TraceError if the file is another, or has too many bad rows.
    """
    bad = bad if bad is not None else BadLines()
    rows: list[tuple[float, int, int]] = []
    for number, row in _rows(path):
        if len(rows) >= max_requests:
            raise TraceError(f"{path} has more than {max_requests:,} requests")
        try:
            rows.append(_read(row))
        except ValueError as error:
            bad.add(f"{path}:{number}", str(error))
    if not rows:
        raise TraceError(f"{path} has no requests{': ' + bad.first[0] if bad.first else ''}")
    rows.sort()
    ids = BlockIds(block_tokens)
    first = rows[0][0]
    requests: list[TraceRequest] = []
    for number, (seconds, prompt_tokens, output_tokens) in enumerate(rows):
        prompt = Context(ids).grown(prompt_tokens)
        requests.append(prompt.request(seconds - first, output_tokens, str(number)))
    return Trace(stem(path), block_tokens, requests)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    lines = read_lines(path, _MAX_ROW_BYTES)
    for number, line in lines:
        row = next(csv.reader([line.decode(errors="replace").lstrip("\ufeff")]), [])
        if number > 1:
            yield number, row
        elif row != _COLUMNS:
            raise TraceError(f"{path} does not begin with the columns {','.join(_COLUMNS)}")


def _read(row: list[str]) -> tuple[float, int, int]:
    if len(row) != len(_COLUMNS):
        raise ValueError(f"a row has {len(_COLUMNS)} columns, not {len(row)}")
    moment = datetime.fromisoformat(row[0])
    seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    prompt_tokens, output_tokens = int(row[1]), int(row[2])
    if not 1 <= prompt_tokens <= MAX_PROMPT_TOKENS or not 0 <= output_tokens <= MAX_PROMPT_TOKENS:
        raise ValueError(f"{prompt_tokens} and {output_tokens} tokens are no lengths of prompt and answer")
    return seconds, prompt_tokens, output_tokens
