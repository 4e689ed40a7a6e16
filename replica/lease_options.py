"""Options of the lease by which routers find a replica."""

from __future__ import annotations

from pydantic import Field, SecretStr

from router.settings import NAME_PATTERN, Options


class LeaseOptions(Options):
    """How routers find this replica through Redis."""

    redis: SecretStr = Field(
        SecretStr(""),
        description="redis://, rediss:// or unix://, with user and password if need be; empty is none.",
    )
    group: str = Field(
        "kvring", pattern=NAME_PATTERN, description="The routers' redis.group: fleets may share one Redis."
    )
    advertise_url: str = Field(
        "",
        pattern=r"^(https?://[^/?#@\s]{1,255})?$",
        description="Where routers reach it, as where pods have addresses; empty is the host it listens on.",
    )
    seconds: float = Field(
        5,
        ge=0.3,
        le=600,
        description="How long it is believed without a word; renewed every third, so two may be lost.",
    )
