"""Tracing: what a request's steps are told to, and what stands there when nobody listens.

A trace context comes in with a request (W3C `traceparent`) and goes on to the replica. Where traces are off,
headers pass as they came.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from router.config import TraceOptions
from router.observe.outcome import Outcome
from router.placement.ask import Choice, Ranking
from router.settings import SettingsError

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

# Version 00, and later ones by what they share with it.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class Parent:
    """A caller's span, and whether it is recorded."""

    trace_id: str
    span_id: str
    sampled: bool

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Parent | None:
        """Read `traceparent`; None where there is none, or no valid one."""
        value = headers.get(TRACEPARENT)
        match = _TRACEPARENT.fullmatch(value) if value else None
        if match is None or (match[4] and value and value.startswith("00")):
            return None
        if not match[1].strip("0") or not match[2].strip("0"):
            return None
        return cls(match[1], match[2], bool(int(match[3], 16) & _SAMPLED))


class Trace:
    """One request that nobody records. Calls come in the order of the methods, if at all.

    `recorded` says that `sending` has something to tell: else the client's context goes on as it came.
    """

    recorded = False

    def __init__(self, trace_id: str = "") -> None:
        """`trace_id` is a caller's, for the log; empty where there is none."""
        self.trace_id = trace_id

    def deciding(self) -> None:
        """Note that replicas are about to be ranked."""

    def queued(self) -> None:
        """Note that there are none: the request waits, until `decided`."""

    def decided(self, ranking: Ranking, policy: str) -> None:
        """Note the ranking, by which policy."""

    def sending(self, choice: Choice, attempt: int, headers: MutableMapping[str, str]) -> None:
        """Note that the request goes to a replica; `headers` are sent along, and are told the context."""

    def failed_over(self, reason: str) -> None:
        """Note that this replica did not take it, and why."""

    def began(self) -> None:
        """Note the first byte of an answer."""

    def ended(self, outcome: Outcome) -> None:
        """Note what became of the request."""


class Tracing:
    """Begins traces that nobody records."""

    def begin(self, headers: Mapping[str, str], path: str, request_id: str) -> Trace:
        """Begin the trace of a request that came just now."""
        parent = Parent.of(headers) if TRACEPARENT in headers else None
        return Trace(parent.trace_id if parent else "")

    async def close(self) -> None:
        """Send what is still to be sent, within a few seconds."""


def start_tracing(options: TraceOptions) -> Tracing:
    """Return what records traces as told; SettingsError where the packages for it are missing."""
    if not options.endpoint:
        return Tracing()
    try:
        # Optional, and half a second: only who sends traces pays for it.
        from router.observe.otel import OtelTracing
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"observe.traces.endpoint: needs the extra otel, pip install 'kvring[otel]' ({error})"
        ) from error
    return OtelTracing(options)
