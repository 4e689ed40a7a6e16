"""Mooncake's trace format: JSON lines with `timestamp`, `input_length`, `output_length` and `hash_ids`.

`timestamp` is in milliseconds, lengths are in tokens, `hash_ids` holds an id for each block of the prompt.
`block_size` (512 where absent) and `session_id` may be given.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from loadgen.traces.lines import MAX_LINE_BYTES, read_lines, stem
from loadgen.traces.trace import Trace, TraceError, TraceRequest

DEFAULT_BLOCK_TOKENS = 512
MAX_REQUESTS = 2_000_000
MAX_PROMPT_TOKENS = 16 * 1024 * 1024


def read_mooncake(
    path: Path,
    name: str | None = None,
    max_requests: int = MAX_REQUESTS,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Trace:
    """Read a trace, its requests sorted by arrival; TraceError, with the line's number, if it is none."""
    ids: dict[int, int] = {}
    requests: list[TraceRequest] = []
    block_tokens: int | None = None
    for number, line in read_lines(path, max_line_bytes):
        if len(requests) >= max_requests:
            raise TraceError(f"{path} has more than {max_requests:,} requests")
        try:
            record = orjson.loads(line)
            if not isinstance(record, dict):
                raise TraceError("a request is a JSON object")
            size = _whole(record, "block_size", 1, MAX_PROMPT_TOKENS, DEFAULT_BLOCK_TOKENS)
            if block_tokens not in (None, size):
                raise TraceError(f"block_size is {size}, but {block_tokens} in the lines before")
            block_tokens = size
            requests.append(_request(record, size, ids))
        except ValueError as error:
            reason = "not JSON: " if isinstance(error, orjson.JSONDecodeError) else ""
            raise TraceError(f"{path}:{number}: {reason}{error}") from error
    if block_tokens is None:
        raise TraceError(f"{path} has no requests")
    requests.sort(key=lambda request: request.arrival_seconds)
    return Trace(name or stem(path), block_tokens, requests)


def write_mooncake(trace: Trace, path: Path) -> None:
    """Write a trace; compressed if the path ends in .gz or .xz. TraceError if it cannot be written."""
    try:
        with _create(path) as file:
            for request in trace.requests:
                record: dict[str, Any] = {
                    "timestamp": round(request.arrival_seconds * 1000, 3),
                    "input_length": request.prompt_tokens,
                    "output_length": request.output_tokens,
                    "hash_ids": request.block_ids,
                    "block_size": trace.block_tokens,
                }
                if request.session is not None:
                    record["session_id"] = request.session
                file.write(orjson.dumps(record) + b"\n")
    except OSError as error:
        raise TraceError(f"{path} cannot be written: {error.strerror or error}") from error


def _request(record: Mapping[str, Any], block_tokens: int, ids: dict[int, int]) -> TraceRequest:
    timestamp = record.get("timestamp")
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float):
        raise TraceError("'timestamp' must be a number of milliseconds")
    prompt_tokens = _whole(record, "input_length", 1, MAX_PROMPT_TOKENS)
    blocks = record.get("hash_ids")
    if not isinstance(blocks, list) or set(map(type, blocks)) - {int}:
        raise TraceError("'hash_ids' must be a list of whole numbers")
    full, rest = divmod(prompt_tokens, block_tokens)
    if not full <= len(blocks) <= full + (rest > 0):
        relation = "beyond" if len(blocks) > full else "short of"
        raise TraceError(
            f"{len(blocks)} hash_ids run {relation} {prompt_tokens} tokens in blocks of {block_tokens}"
        )
    session = record.get("session_id")
    return TraceRequest(
        arrival_seconds=timestamp / 1000,
        prompt_tokens=prompt_tokens,
        output_tokens=_whole(record, "output_length", 0, MAX_PROMPT_TOKENS),
        # One object for each different id, since a trace holds millions of them.
        block_ids=tuple([ids.setdefault(block, block) for block in blocks]),
        session=None if session is None else str(session),
    )


def _whole(record: Mapping[str, Any], name: str, low: int, high: int, default: int | None = None) -> int:
    value = record.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise TraceError(f"'{name}' must be a whole number from {low} to {high}")
    return value


def _create(path: Path) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    if path.suffix == ".gz":
        # No name and no time inside, so that the same trace gives the same file.
        return gzip.GzipFile(path, "wb", mtime=0)
    if path.suffix == ".xz":
        return lzma.open(path, "wb", preset=9)
    return path.open("wb")
