"""A trace: requests in the order of their arrival, each with the names of its prompt's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite


class TraceError(ValueError):
    """What was given is no trace that can be used; the message is one line that says where and why."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request.

    `block_ids` are chained as the router's names of blocks are: equal ids mean equal prefixes up to there.
    They cover the prompt; the last one may stand for a partial block. `session` names the conversation it
    belongs to, where that is known.
    """

    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    session: str | None = None

    def __post_init__(self) -> None:
        if not (isfinite(self.arrival_seconds) and self.arrival_seconds >= 0):
            raise TraceError(f"a request's arrival is no time from 0 on: {self.arrival_seconds}")
        if self.prompt_tokens < 1:
            raise TraceError(f"a prompt has at least one token, not {self.prompt_tokens}")
        if self.output_tokens < 0:
            raise TraceError(f"an answer cannot have {self.output_tokens} tokens")


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests sorted by arrival, over blocks of `block_tokens` tokens."""

    name: str
    block_tokens: int
    requests: Sequence[TraceRequest]

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise TraceError(f"a block has at least one token, not {self.block_tokens}")
        before = 0.0
        for position, request in enumerate(self.requests, 1):
            if request.arrival_seconds < before:
                raise TraceError(f"request {position} of {self.name} arrives before the one in front of it")
            before = request.arrival_seconds
            full, rest = divmod(request.prompt_tokens, self.block_tokens)
            if not full <= len(request.block_ids) <= full + (rest > 0):
                raise TraceError(
                    f"request {position} of {self.name} has {len(request.block_ids)} block ids"
                    f" for {request.prompt_tokens} tokens in blocks of {self.block_tokens}"
                )

    def full_blocks(self, request: TraceRequest) -> tuple[int, ...]:
        """Return the ids of the request's full blocks: only those can be found in a cache."""
        return request.block_ids[: request.prompt_tokens // self.block_tokens]

    def distinct_blocks(self) -> int:
        """Count the different blocks of all prompts, partial ones too: the working set."""
        return len({block for request in self.requests for block in request.block_ids})

    def prompt_tokens(self) -> int:
        """Return the tokens of all prompts."""
        return sum(request.prompt_tokens for request in self.requests)

    def hit_bound(self) -> float:
        """Return the token hit ratio that one cache without limit would give, 0 to 1.

        Only full blocks hit, and one token of a prompt is always computed.
        """
        seen: set[int] = set()
        hit_tokens = 0
        for request in self.requests:
            full = self.full_blocks(request)
            depth = next((at for at, block in enumerate(full) if block not in seen), len(full))
            hit_tokens += min(depth * self.block_tokens, request.prompt_tokens - 1)
            seen.update(full)
        return hit_tokens / max(1, self.prompt_tokens())

    def duration_seconds(self) -> float:
        """Return the time between the first arrival and the last."""
        if not self.requests:
            return 0.0
        return self.requests[-1].arrival_seconds - self.requests[0].arrival_seconds

    def scaled(self, time_scale: float) -> Trace:
        """Return the same requests at `time_scale` times the rate: arrivals are divided by it."""
        if not (isfinite(time_scale) and time_scale > 0):
            raise TraceError(f"a time scale is a number above 0, not {time_scale}")
        return replace(
            self,
            requests=[
                replace(request, arrival_seconds=request.arrival_seconds / time_scale)
                for request in self.requests
            ],
        )
