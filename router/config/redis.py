"""Options of what is shared through Redis."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from router.settings import NAME_PATTERN, Options

# Without the text that stood there: it may be a part of a password that is not percent-encoded.
_NO_PORT = (
    "what stands after the host's colon is no port from 1 to 65535; in a password / ? # @ are percent-encoded"
    ", and an IPv6 address stands in brackets"
)


class RedisOptions(Options):
    """What routers and replicas share. Nothing on a request's path ever waits for it."""

    url: SecretStr = Field(
        SecretStr(""),
        description="redis://, rediss:// or unix://, with user and password if need be; empty is none.",
    )
    group: str = Field(
        "kvring", pattern=NAME_PATTERN, description="Fleets that share one Redis have different ones."
    )
    timeout_seconds: float = Field(
        0.1, ge=0.01, le=5, description="Of one command; a healthy Redis answers in a millisecond."
    )
    share_load: bool = Field(True, description="Publish what this router has in flight, and read others'.")
    publish_seconds: float = Field(
        0.25, ge=0.02, le=10, description="As often as load is polled: counts this stale cost little."
    )
    expire_seconds: float = Field(
        3, ge=0.1, le=60, description="Counts of a router not heard from for so long are gone."
    )
    longest_pause_seconds: float = Field(
        5, ge=0.1, le=300, description="After failures it is tried again ever later, up to this."
    )

    @field_validator("url")
    @classmethod
    def _with_a_port(cls, url: SecretStr) -> SecretStr:
        try:
            parts = urlsplit(url.get_secret_value())
        except ValueError:
            raise ValueError("an IPv6 address stands in brackets: redis://[::1]:6379") from None
        if parts.scheme not in ("redis", "rediss"):
            return url
        try:
            port = parts.port
        except ValueError:
            port = 0
        if port == 0:
            raise ValueError(_NO_PORT)
        return url
