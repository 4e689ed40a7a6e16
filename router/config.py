"""The router's options: one TOML file, environment (KVRING_...), flags; each with its unit and bound."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from router.chain.options import ChainOptions
from router.settings import NAME_PATTERN, Options, Settings
from router.wire.prefill_options import PrefillOptions


class ListenOptions(Options):
    """Where the router listens."""

    host: str = Field("127.0.0.1", description="Loopback by default: an open port is a decision.")
    port: int = Field(8080, ge=0, le=65_535, description="0 takes a free one.")


class ReplicaAddress(Options):
    """One replica of a static fleet."""

    name: str = Field(pattern=NAME_PATTERN, description="Stable name: the ring goes by it, clients see it.")
    url: str = Field(pattern=r"^https?://[^/@\s]+/?$", description="Scheme, host and port.")

    @field_validator("url")
    @classmethod
    def _no_slash(cls, url: str) -> str:
        return url.rstrip("/")


class DnsOptions(Options):
    """A fleet found by name, such as a headless Service: each address is a replica."""

    host: str = Field("", max_length=253, description="The name to resolve; empty turns this source off.")
    port: int = Field(8000, ge=1, le=65_535, description="Where every replica listens.")
    refresh_seconds: float = Field(
        5, ge=0.1, le=300, description="A new pod is found within this; the resolver caches below it anyway."
    )


class CalibrationOptions(Options):
    """How the router learns what prefills cost on each replica."""

    start: PrefillOptions = Field(
        PrefillOptions(), description="S until something is known; that of the study routing is tuned on."
    )
    memory_observations: int = Field(
        100,
        ge=10,
        le=100_000,
        description="Prefills that an estimate rests on; fewer follow noise, more are slow after a change.",
    )
    noise_ratio: float = Field(
        0.3,
        ge=0.03,
        le=1,
        description="How far prefills stray from S, until that is learned: as on busy CPUs.",
    )
    unlike_ratio: float = Field(
        0.2,
        ge=0.001,
        le=0.999,
        description="Share of replicas that differ in speed from others of their model; most fleets are of "
        "one kind. Near 1, each replica's own account is taken as it is.",
    )


class FleetOptions(Options):
    """Who the replicas are and how they are watched."""

    replicas: tuple[ReplicaAddress, ...] = Field((), max_length=1024, description="Static members.")
    dns: DnsOptions = DnsOptions()
    state_poll_seconds: float = Field(
        0.25,
        ge=0.02,
        le=60,
        description="Load this stale costs little over live load; a second costs a third.",
    )
    digest_poll_seconds: float = Field(
        2, ge=0.1, le=600, description="Caches turn over in minutes; the router's own memory bridges the gap."
    )
    probe_timeout_seconds: float = Field(
        2,
        gt=0,
        le=60,
        description="A probe that takes longer failed; a busy replica answers in milliseconds.",
    )
    failures_to_suspect: int = Field(
        2, ge=1, le=100, description="Failed probes or answers in a row that take a replica out of rotation."
    )
    calibration: CalibrationOptions = CalibrationOptions()

    @model_validator(mode="after")
    def _names_differ(self) -> FleetOptions:
        names = [replica.name for replica in self.replicas]
        if len(set(names)) != len(names):
            raise ValueError("replicas must have different names")
        return self


class PolicyOptions(Options):
    """Which policy ranks, and its own options."""

    name: str = Field(
        "affinity", min_length=1, max_length=200, description="A policy, or a dotted module name."
    )
    options: Mapping[str, Any] = Field({}, description="The policy's Config.")


class ModelOptions(Options):
    """What the router knows of a model beside what replicas tell."""

    tokenizer_directory: Path | None = Field(
        None, description="Holds tokenizer.json and the chat template; without, prompts are chained by bytes."
    )


class LimitOptions(Options):
    """Bounds on time and size."""

    body_bytes: int = Field(
        32 * 1024 * 1024,
        ge=1024,
        le=1024**3,
        description="Largest request; long chats with pictures take MBs.",
    )
    body_seconds: float = Field(60, gt=0, le=3600, description="A client that sends slower is cut off.")
    tokenised_bytes: int = Field(
        4 * 1024 * 1024,
        ge=0,
        le=1024**3,
        description="Larger bodies are chained by bytes: tokenising them costs seconds.",
    )
    connect_seconds: float = Field(2, gt=0, le=60, description="A live replica accepts at once.")
    first_byte_seconds: float = Field(
        600, gt=0, le=86_400, description="Longest queue and prefill; the default of OpenAI's clients."
    )
    idle_seconds: float = Field(
        120,
        gt=0,
        le=86_400,
        description="Longest silence within an answer. There is no limit on its whole length.",
    )
    write_seconds: float = Field(
        120,
        gt=0,
        le=86_400,
        description="A client that takes nothing for so long is cut off: it holds a lease.",
    )
    attempts: int = Field(3, ge=1, le=16, description="Replicas tried for one request, the first included.")
    in_flight: int = Field(
        4096, ge=1, le=1_000_000, description="Requests held at once; more are answered 503 at once."
    )
    idle_connection_seconds: float = Field(
        55, gt=0, le=3600, description="Pooled connections idle longer are closed, before a replica does so."
    )
    drain_seconds: float = Field(
        30, ge=0, le=86_400, description="After SIGTERM, how long running answers may take to end."
    )
    drain_notice_seconds: float = Field(
        2, ge=0, le=600, description="After SIGTERM, how long clients may still come: they learn of it late."
    )
    tokenizer_threads: int = Field(2, ge=1, le=64, description="Tokenising releases the GIL; a core each.")


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
        description="Most of the requests that are looked at: a layout shows in a few. 0 turns the lint off.",
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
    explain: bool = Field(
        False,
        description="Serve /debug/explain and /debug/layout: where requests went and why, and what the layout"
        " of their prompts costs, without their text. Off, as whoever"
        " reaches the port could ask which prefixes are cached.",
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


class SessionOptions(Options):
    """Where session_ring finds a session."""

    header: str = Field(
        "x-session-id", pattern=r"^[A-Za-z0-9-]{1,64}$", description="Header with the session id; any case."
    )


class RouterConfig(Settings):
    """All options of a router."""

    model_config = SettingsConfigDict(env_prefix="KVRING_")

    listen: ListenOptions = ListenOptions()
    fleet: FleetOptions = FleetOptions()
    policy: PolicyOptions = PolicyOptions()
    chain: ChainOptions = ChainOptions()
    models: Mapping[str, ModelOptions] = Field({}, description="By name, as clients ask for them.")
    limits: LimitOptions = LimitOptions()
    sessions: SessionOptions = SessionOptions()
    observe: ObserveOptions = ObserveOptions()
