"""Options of a sidecar: which engine it follows, and where it listens. The chain is the routers' own."""

from __future__ import annotations

from pydantic import Field

from router.settings import Options


class SidecarOptions(Options):
    """What a sidecar needs beside the routers' options."""

    engine: str = Field(
        "http://127.0.0.1:8000",
        pattern=r"^https?://[^/@\s]+/?$",
        description="The engine in this pod; it tells its models, and where it publishes.",
    )
    events: str = Field(
        "",
        max_length=300,
        description="Where it publishes, as a ZMQ address; empty asks the engine. With @ before it, the"
        " engine connects here.",
    )
    replay: str = Field(
        "", max_length=300, description="Where it replays what was missed, if it does; goes with events."
    )
    host: str = Field("127.0.0.1", description="Loopback by default: an open port is a decision.")
    port: int = Field(
        8100, ge=0, le=65_535, description="Where routers look for digests, unless told; 0 takes a free one."
    )
