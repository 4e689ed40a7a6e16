"""The router's options: one TOML file, environment (KVRING_...), flags; each with its unit and bound."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from router.chain.options import ChainOptions
from router.config.fleet import (
    CalibrationOptions,
    DnsOptions,
    EventOptions,
    FleetOptions,
    HandoverOptions,
    HungOptions,
    KubernetesOptions,
    LeaseOptions,
    OutlierOptions,
    ReplicaAddress,
)
from router.config.limits import LimitOptions
from router.config.observe import LayoutOptions, ObserveOptions, ShadowOptions, TraceOptions
from router.config.picker import PickerOptions
from router.config.redis import RedisOptions
from router.settings import Options, Settings

__all__ = [
    "AuthOptions",
    "CalibrationOptions",
    "ControlOptions",
    "DnsOptions",
    "EventOptions",
    "FleetOptions",
    "HandoverOptions",
    "HungOptions",
    "KubernetesOptions",
    "LayoutOptions",
    "LeaseOptions",
    "LimitOptions",
    "ListenOptions",
    "ModelOptions",
    "ObserveOptions",
    "OutlierOptions",
    "PickerOptions",
    "PolicyOptions",
    "RedisOptions",
    "ReplicaAddress",
    "RouterConfig",
    "SessionOptions",
    "ShadowOptions",
    "TraceOptions",
]


class ListenOptions(Options):
    """Where the router listens."""

    host: str = Field("127.0.0.1", description="Loopback by default: an open port is a decision.")
    port: int = Field(8080, ge=0, le=65_535, description="0 takes a free one.")
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes that serve this port, about one a core; each is a router of its own.",
    )


class ControlOptions(Options):
    """Where metrics, probes, explanations and the page are served."""

    host: str = Field("127.0.0.1", description="Loopback by default, as it tells about the fleet.")
    port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="None serves them on the port of the API, all but probes for those who have a key where"
        " auth.keys_file asks for keys; a port of their own keeps clients from them, and asks for none.",
    )


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


class AuthOptions(Options):
    """Who may ask."""

    keys_file: Path | None = Field(
        None,
        description="Digests of API keys, one a line as sha256:HEX NAME; without a file anybody may ask."
        " On the API's port nothing but /healthz and /readyz is answered without a key.",
    )


class SessionOptions(Options):
    """Where session_ring finds a session."""

    header: str = Field(
        "x-session-id", pattern=r"^[A-Za-z0-9-]{1,64}$", description="Header with the session id; any case."
    )


class RouterConfig(Settings):
    """All options of a router."""

    model_config = SettingsConfigDict(env_prefix="KVRING_")

    listen: ListenOptions = ListenOptions()
    control: ControlOptions = ControlOptions()
    fleet: FleetOptions = FleetOptions()
    redis: RedisOptions = RedisOptions()
    policy: PolicyOptions = PolicyOptions()
    chain: ChainOptions = ChainOptions()
    models: Mapping[str, ModelOptions] = Field({}, description="By name, as clients ask for them.")
    limits: LimitOptions = LimitOptions()
    auth: AuthOptions = AuthOptions()
    sessions: SessionOptions = SessionOptions()
    observe: ObserveOptions = ObserveOptions()
    picker: PickerOptions = PickerOptions()
    reload_seconds: float = Field(
        5, ge=0, le=3600, description="How often the file is looked at for changes; 0 waits for SIGHUP."
    )

    @model_validator(mode="after")
    def _redis_for_leases(self) -> RouterConfig:
        if self.fleet.leases.enabled and not self.redis.url.get_secret_value():
            raise ValueError("fleet.leases needs redis.url")
        return self
