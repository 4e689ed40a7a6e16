"""Options of what is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from router.settings import NAME_PATTERN, Options


class ShadowOptions(Options):
    """One policy that ranks live traffic without acting."""

    name: str = Field(pattern=NAME_PATTERN, description="What its figures go by.")
    policy: str = Field(
        min_length=1, max_length=200, description="A policy, or a dotted module name; as for the acting one."
    )
    options: Mapping[str, Any] = Field({}, description="The policy's Config.")
    sample_share: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Share of conversations it sees, all their turns: enough for a verdict within a day at a"
        " twentieth of the cost.",
    )


class LayoutOptions(Options):
    """What the lint of live layouts may cost."""

    sample_share: float = Field(
        0.02,
        ge=0,
        le=1,
        description="Most of the requests that are looked at, and of a core that this takes: a layout shows"
        " in a few. 0 turns the lint off.",
    )
    memory_bytes: int = Field(
        16 * 1024 * 1024,
        ge=64 * 1024,
        le=4 * 1024**3,
        description="For hashes of prompts seen lately: about a thousand conversations.",
    )
    prompts: int = Field(
        4096, ge=2, le=1_000_000, description="Remembered at most; a conversation counts once."
    )
    body_bytes: int = Field(
        256 * 1024,
        ge=1024,
        le=64 * 1024 * 1024,
        description="Larger ones are left out and counted: the first look at so many messages takes 75 ms.",
    )


class TraceOptions(Options):
    """OpenTelemetry traces; needs the extra `otel`."""

    endpoint: str = Field(
        "",
        pattern=r"^(https?://[^\s]+)?$",
        description="Where to send them, as OTLP over HTTP: http://collector:4318. Empty sends none.",
    )
    sample_ratio: float = Field(
        0.01, ge=0, le=1, description="Of requests that bring no decision of their own; a span costs 50 us."
    )
    service_name: str = Field("kvring-router", min_length=1, max_length=100, description="Who sends them.")


class ObserveOptions(Options):
    """What is told."""

    response_headers: bool = Field(
        True, description="Send x-kvring-* headers; off hides the fleet from clients."
    )
    access_log: bool = Field(
        True, description="One line a request: who served it, and what was expected and hit."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Of the log on stderr."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Lines for people, or one JSON object a line for collectors."
    )
    run: str = Field(
        "",
        max_length=63,
        pattern=r"^[A-Za-z0-9._-]*$",
        description="Names what is tried now; dashboards compare runs by it.",
    )
    traces: TraceOptions = TraceOptions()
    explain: bool = Field(
        False,
        description="Serve /debug/explain, /debug/decisions and /debug/layout: where requests went, and why,"
        " and what the layout of their prompts costs, without their text. Off, as whoever reaches the port"
        " could ask which prefixes are cached.",
    )
    explained_requests: int = Field(
        1024,
        ge=1,
        le=65_536,
        description="How many of the last requests can be explained; up to 9 kB each, on a fleet of 256.",
    )
    shadow: tuple[ShadowOptions, ...] = Field(
        (), max_length=16, description="Policies in shadow, reported by /debug/shadow and in metrics."
    )
    layout: LayoutOptions = LayoutOptions()

    @field_validator("shadow")
    @classmethod
    def _names_differ(cls, shadow: tuple[ShadowOptions, ...]) -> tuple[ShadowOptions, ...]:
        if len({one.name for one in shadow}) != len(shadow):
            raise ValueError("shadows must have different names")
        return shadow
