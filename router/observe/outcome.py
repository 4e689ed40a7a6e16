"""Outcome: what happened to one request, gathered while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from router.observe.attribution import Misses


@dataclass(slots=True)
class Outcome:
    """What happened to one request. Tokens are None where nobody told; seconds count from arrival.

    `turn` is the number of the user's messages in a chat, 0 for what is none; `wait_seconds` is how long it
    waited for a usable replica, None where it did not. `trace_id` is that of its trace, if it has one.

    `evicted_tokens` are those that the replica had once, right behind the hit; `block_tokens` its block, 0
    where that is not known; `misses` the uncached tokens of a prompt that was served, by cause.
    """

    request_id: str
    path: str
    arrived_at: float
    model: str = ""
    turn: int = 0
    trace_id: str = ""
    tier: str = "none"
    replica: str = ""
    reason: str = ""
    status: int = 0
    result: str = "ok"
    attempts: int = 0
    prompt_tokens: int = 0
    expected_tokens: int = 0
    hit_tokens: int | None = None
    output_tokens: int | None = None
    evicted_tokens: int | None = None
    block_tokens: int = 0
    misses: Misses | None = None
    streamed: bool = False
    wait_seconds: float | None = None
    first_byte_seconds: float | None = None
    total_seconds: float = 0.0
    client_retry: str = "0"

    @property
    def served(self) -> bool:
        """Whether a replica answered it in full."""
        return bool(self.replica) and self.result == "ok" and 0 < self.status < 400
