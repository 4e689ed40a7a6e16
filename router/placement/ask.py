"""Ask, ranking and policy: the question, the answer and who gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from xxhash import xxh3_128_digest

from router.chain.chain import Chain
from router.placement.view import FleetView


@dataclass(frozen=True, slots=True)
class Ask:
    """All a policy may know of a request.

    `chain` is None where the prompt could not be named (its length is then an estimate). `session` is the
    session key a client sent, if any. `spread` tells apart requests that have no other key.
    """

    model: str
    prompt_tokens: int
    spread: bytes
    chain: Chain | None = None
    session: bytes | None = None

    def key_at(self, depth: int) -> bytes:
        """Return the key of the prompt's first `depth` blocks; of all its data where it fills no block."""
        if self.chain is None:
            return self.spread
        if not self.chain.names:
            return xxh3_128_digest(self.chain.data)
        return self.chain.names[min(max(depth, 1), len(self.chain.names)) - 1]


@dataclass(frozen=True, slots=True)
class Choice:
    """One place in a ranking: what was expected of a replica when it was ranked, and why it stands there."""

    name: str
    epoch: str
    expected_tokens: int = 0
    wait_seconds: float = 0.0
    prefill_seconds: float = 0.0
    reason: str = ""


# Replicas, best first, each once.
Ranking = tuple[Choice, ...]


class Policy(Protocol):
    """Ranks replicas. `rank` changes nothing and asks no clock; `commit` learns from a real dispatch."""

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        """Rank every replica of the view once; empty for an empty fleet."""

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        """Note that `ask` was served by `choice`: once for each request that a replica accepted."""
