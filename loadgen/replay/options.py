"""Options of `kvring replay`: what is replayed, how fast, and which fleet it meets."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from router.settings import Options


class ReplayOptions(Options):
    """What is replayed, how fast, and which fleet it meets."""

    url: str = Field(
        "http://127.0.0.1:8080",
        pattern=r"^https?://",
        description="Address below /v1; `kvring up` listens there.",
    )
    model: str | None = Field(
        None, max_length=256, description="Model to ask for; by default the first that the address lists."
    )
    trace: str = Field("conversation", min_length=1, description="Name of a shipped trace, or a file.")
    requests: int | None = Field(
        None, ge=1, le=2_000_000, description="Only so many requests, from the first on; all by default."
    )
    time_scale: float = Field(
        1.0, gt=0, le=1e6, description="Arrivals are divided by it: 2 plays the trace twice as fast."
    )
    in_flight: int = Field(
        1024,
        ge=1,
        le=100_000,
        description="Requests unanswered at once; more wait, and their TTFT counts that.",
    )
    max_output_tokens: int | None = Field(
        None, ge=1, le=1_000_000, description="Answers are cut to this; by default as long as in the trace."
    )
    prompt: Literal["tokens", "text"] = Field(
        "tokens", description="Token ids are exact; text is for engines that take none, a short word a token."
    )
    first_token_id: int = Field(
        1000, ge=0, le=1_000_000, description="Least token id used; special tokens are mostly below."
    )
    token_ids: int = Field(
        20_000, ge=2, le=65_536, description="How many ids are used from there on; fits usual vocabularies."
    )
    total_seconds: float = Field(
        300.0, gt=0, le=86_400, description="A request that takes longer counts as without an answer."
    )
    policy: str = Field("affinity", description="Policy to simulate: what the live routers run.")
    cache_tokens: int = Field(
        65_536, ge=1, le=10**9, description="Cache of a replica in the simulation; an echo replica's default."
    )
