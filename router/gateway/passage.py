"""Passage: one request on its way through the router, and what it has come by so far."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from router.gateway.prepare import Prepared
from router.gateway.waiting import Turn
from router.http.reply import Reply
from router.http.request import Request
from router.observe.outcome import Outcome
from router.observe.tracing import Trace
from router.observe.witness import Decision


@dataclass(slots=True, eq=False)
class Passage:
    """One request that is served. `decision` is its newest.

    Where nobody can be found, or connected to, it waits until `wait_until` (monotonic) in all; `turn` is then
    its right to be on a replica before its first byte.
    """

    request: Request
    reply: Reply
    prepared: Prepared
    outcome: Outcome
    trace: Trace
    decision: Decision | None = None
    turn: Turn | None = None
    # What goes to every replica that is tried.
    common_headers: bytes = b""
    wait_until: float = inf

    def forget_body(self) -> None:
        """Let go of the client's body."""
        self.prepared = self.prepared._replace(raw=b"")

    def end_turn(self) -> None:
        """Let the next go that waits."""
        if self.turn is not None:
            self.turn.end()
