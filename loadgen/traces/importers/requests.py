"""Imports request logs: bodies of OpenAI's and Anthropic's APIs, with blocks named as by the router."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadgen.traces.importers.arrivals import ArrivalOptions, Arrivals
from loadgen.traces.importers.naming import PromptNaming
from loadgen.traces.lines import stem
from loadgen.traces.request_log import BadLines, read_requests
from loadgen.traces.trace import Trace, TraceError, TraceRequest

_MAX_OUTPUT_TOKENS = 1_000_000


def import_requests(
    path: Path,
    naming: PromptNaming,
    arrivals: ArrivalOptions,
    output_tokens: int = 200,
    bad: BadLines | None = None,
) -> Trace:
    """Return the trace of a log; TraceError if it cannot be read or has too many bad lines.

    Times count from the first request. If any request lacks a time, all get drawn ones, in the order of the
    log. A log of requests does not hold the answers: each is taken for `output_tokens` long, or for the
    request's own limit if that is lower.
    """
    bad = bad if bad is not None else BadLines()
    times: list[float | None] = []
    requests: list[TraceRequest] = []
    for number, logged in enumerate(read_requests(path, bad), 1):
        try:
            requests.append(naming.request(logged.path, logged.body, 0, _limited(logged.body, output_tokens)))
        except TraceError as error:
            bad.add(f"{path}, request {number}", str(error))
            continue
        times.append(logged.arrival_seconds)
    if not requests:
        raise TraceError(f"{path} has no requests that can be named, the first: {bad.first[0]}")
    timed = _timed(requests, times, Arrivals(arrivals))
    return Trace(stem(path), naming.block_tokens, timed)


def _timed(requests: list[TraceRequest], times: list[float | None], arrivals: Arrivals) -> list[TraceRequest]:
    known = [time for time in times if time is not None]
    if len(known) < len(requests):
        return [_at(request, arrivals.begin()) for request in requests]
    first = min(known)
    timed = [_at(request, time - first) for request, time in zip(requests, known, strict=True)]
    return sorted(timed, key=lambda request: request.arrival_seconds)


def _at(request: TraceRequest, arrival_seconds: float) -> TraceRequest:
    return TraceRequest(
        arrival_seconds, request.prompt_tokens, request.output_tokens, request.block_ids, request.session
    )


def _limited(body: dict[str, Any], output_tokens: int) -> int:
    limits = [body.get(name) for name in ("max_completion_tokens", "max_tokens")]
    given = [limit for limit in limits if isinstance(limit, int) and 0 <= limit <= _MAX_OUTPUT_TOKENS]
    return min([output_tokens, *given])
