"""Options of `kvring load`: what is asked, when, and for how long."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class LoadOptions(BaseModel):
    """One run. Sizes in tokens are approximate, since text is made by words."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(
        "http://127.0.0.1:8080",
        pattern=r"^https?://",
        description="Address below /v1; `kvring up` listens there.",
    )
    model: str | None = Field(
        None, max_length=256, description="Model to ask for; by default the first that the address lists."
    )
    workload: Literal["multi_turn", "shared_prompt", "rag"] = Field(
        "multi_turn", description="What is asked; chats have most to gain from a cache."
    )
    arrival: Literal["closed", "open"] = Field(
        "closed",
        description="closed: so many users, each with one session at a time, so that any fleet keeps up. "
        "open: sessions by the clock (Poisson), whatever the answers do.",
    )
    concurrency: int = Field(
        8, ge=1, le=100_000, description="Users, if closed; a few keep a small fleet busy."
    )
    sessions_per_second: float = Field(
        1.0, gt=0, le=100_000, description="New sessions, if open; requests are that times the turns."
    )
    think_seconds: float = Field(
        0.0, ge=0, le=3600, description="Mean pause of a user before a turn; none finds the fleet's limit."
    )
    seed: int = Field(0, ge=0, le=2**63, description="The same seed asks the same.")
    requests: int = Field(
        200, ge=1, le=10_000_000, description="The run ends after so many; enough for a p99."
    )
    duration_seconds: float = Field(
        300.0,
        gt=0,
        le=86_400,
        description="Nothing new is asked after this time, so that a slow fleet ends too.",
    )
    turns: int = Field(8, ge=1, le=10_000, description="Of a session in multi_turn; a chat of usual length.")
    system_tokens: int = Field(
        300,
        ge=0,
        le=1_000_000,
        description="Shared system prompt in multi_turn and shared_prompt; a short one.",
    )
    turn_tokens: int = Field(
        200, ge=0, le=1_000_000, description="New text of a turn or question; a few paragraphs."
    )
    documents: int = Field(3, ge=1, le=1000, description="Before each question in rag; what retrievers give.")
    document_tokens: int = Field(300, ge=1, le=1_000_000, description="Of a document in rag; a usual chunk.")
    corpus_documents: int = Field(
        100,
        ge=1,
        le=100_000,
        description="Documents to draw from in rag, by Zipf's law: few are asked for often.",
    )
    answer_tokens: int = Field(
        16, ge=1, le=100_000, description="At most; short, since prompts are the subject."
    )
    total_seconds: float = Field(
        300.0,
        gt=0,
        le=86_400,
        description="A request that takes longer counts as failed; half of usual clients'.",
    )
