"""How the sessions of a trace go on: by appending, by one clean break at times, or by breaking all the time.

A trace has no text, so that causes are not to be told; but where a session's next prompt leaves its last
one, and how much stood behind that place, is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.traces.trace import Trace

# A session that broke so few turns ago breaks all the time.
CLEAN_TURNS = 4


@dataclass(frozen=True, slots=True)
class SessionBreaks:
    """Counts of turns after the first. `left_tokens` of earlier prompts stood behind the breaks.

    At most so much of the later prompts would have been found with an append-only layout.
    """

    sessions: int
    turns: int
    appended: int
    clean_breaks: int
    clean_left_tokens: int
    repeated_breaks: int
    repeated_left_tokens: int

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        return {
            "sessions": self.sessions,
            "turns": self.turns,
            "appended": self.appended,
            "clean_breaks": {"turns": self.clean_breaks, "left_tokens": self.clean_left_tokens},
            "repeated_breaks": {"turns": self.repeated_breaks, "left_tokens": self.repeated_left_tokens},
        }


def session_breaks(trace: Trace) -> SessionBreaks | None:
    """Compare each request with the one before it in its session; None for a trace that knows no sessions."""
    last: dict[str, tuple[int, ...]] = {}
    since: dict[str, int] = {}
    turns = appended = 0
    breaks, left = [0, 0], [0, 0]
    for request in trace.requests:
        session = request.session
        if session is None:
            continue
        blocks = trace.full_blocks(request)
        before = last.get(session)
        last[session] = blocks
        if before is None:
            since[session] = CLEAN_TURNS
            continue
        turns += 1
        behind = min(len(before) - _common(before, blocks), len(blocks))
        if behind <= 0:
            appended += 1
            since[session] += 1
            continue
        repeated = since[session] < CLEAN_TURNS
        breaks[repeated] += 1
        left[repeated] += behind * trace.block_tokens
        since[session] = 0
    if not last:
        return None
    return SessionBreaks(len(last), turns, appended, breaks[0], left[0], breaks[1], left[1])


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
