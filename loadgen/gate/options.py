"""Options of `kvring gate`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from router.settings import Options


class GateOptions(Options):
    """What is asked, how often, and how far below its baseline the hit ratio may be."""

    url: str = Field(
        "http://127.0.0.1:8080",
        pattern=r"^https?://[^/@\s]+(/.*)?$",
        description="Address of a router or of any server with the same API, below /v1.",
    )
    api: Literal["openai", "anthropic"] = Field(
        "openai", description="API of the built-in cases; the cases of a file go where each says."
    )
    model: str = Field("", description="Model of the built-in cases; the first that is listed if not named.")
    runs: int = Field(
        5, ge=1, le=101, description="Their median counts: one run in two may be spoilt by other traffic."
    )
    tolerance: float = Field(
        0.03,
        ge=0,
        le=1,
        description="How far the median may be below the baseline's, as a part of all tokens.",
    )
    cold: Literal["line", "salt", "off"] = Field(
        "line",
        description="What keeps a run from hitting the one before: a first line of its own in the system "
        "prompt works everywhere; a cache_salt leaves prompts alone, where servers know it.",
    )
    conversations: int = Field(
        8,
        ge=1,
        le=1000,
        description="Of the built-in cases. Few tell little: replicas part them differently.",
    )
    turns: int = Field(6, ge=1, le=100, description="Of each conversation.")
    turn_tokens: int = Field(200, ge=1, le=100_000, description="Of new text in each turn.")
    system_tokens: int = Field(
        1500,
        ge=1,
        le=100_000,
        description="Of the shared prompt: some APIs cache nothing under 1,024 tokens.",
    )
    answer_tokens: int = Field(8, ge=1, le=4096, description="Of each answer: what is gated is the prefill.")
    seed: int = Field(0, description="Of the texts.")
    pause_seconds: float = Field(
        0, ge=0, le=600, description="Between requests; some caches can be read only a moment later."
    )
    timeout_seconds: float = Field(300, gt=0, le=86_400, description="Of one request.")
