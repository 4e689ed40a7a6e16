"""Options of the endpoint picker."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from router.settings import Options


class PickerOptions(Options):
    """Where `kvring picker` listens for an Envoy, and what it answers."""

    host: str = Field("127.0.0.1", description="Loopback by default: an open port is a decision.")
    port: int = Field(
        9002, ge=0, le=65_535, description="For ext_proc; as gateways expect. 0 takes a free one."
    )
    health_port: int = Field(9003, ge=0, le=65_535, description="For gRPC health checks; as they expect.")
    fallbacks: int = Field(
        2, ge=0, le=15, description="Replicas named behind the best, for a gateway that retries."
    )
    streams: int = Field(
        4096, ge=1, le=1_000_000, description="Requests held at once; more are answered 429."
    )
    certificate_file: Path | None = Field(
        None,
        description="PEM, its chain behind it: gateways come by TLS then, without by plain HTTP/2. A renewed"
        " one is taken up by itself.",
    )
    key_file: Path | None = Field(None, description="PEM key of the certificate.")

    @model_validator(mode="after")
    def _both_or_none(self) -> PickerOptions:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file go together")
        return self

    @model_validator(mode="after")
    def _ports_differ(self) -> PickerOptions:
        if self.port == self.health_port != 0:
            raise ValueError("port and health_port must differ")
        return self
