"""The options of the KV events that a replica publishes."""

from __future__ import annotations

from pydantic import Field

from router.settings import Options

_ADDRESS = r"^((tcp|ipc|inproc)://\S+)$"


class EventOptions(Options):
    """KV events in vLLM's format. They hold every prompt's token ids: keep the ports inside the cluster."""

    enabled: bool = Field(False, description="Routers of ours read digests, and need no events.")
    endpoint: str = Field(
        "tcp://*:5557",
        pattern=_ADDRESS,
        max_length=256,
        description="Bound where its host is *, 0.0.0.0 or ::, else connected to, as vLLM does; port 0 is a "
        "free one.",
    )
    replay_endpoint: str = Field(
        "",
        pattern=rf"{_ADDRESS}|^$",
        max_length=256,
        description="Where followers ask for what they missed, such as tcp://*:5558; empty is nowhere.",
    )
    topic: str = Field("", max_length=200, description="Sent before each batch; followers may choose by it.")
    buffer_steps: int = Field(
        10_000, ge=1, le=10_000_000, description="Batches kept for replay; some minutes of a busy GPU."
    )
    high_water_mark: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description="Batches that wait for a slow follower, or to be sent at all; beyond they are dropped.",
    )
