"""Options of the chain, the same for routers and replicas."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from router.settings import Options


class ChainOptions(Options):
    """What routers and replicas must agree on for their names of blocks to compare."""

    algorithm: Literal["sha256", "xxh3"] = Field(
        "sha256", description="How blocks are named; sha256 since its names may be trusted as equal tokens."
    )
    seed: str = Field(
        "kvring",
        min_length=1,
        max_length=256,
        description="Root of all names. Your own, kept secret, makes names unguessable from outside.",
    )
    block_tokens: int = Field(
        16,
        ge=1,
        le=256,
        description="Tokens in a block; 16 as in vLLM: finer costs time, coarser loses hits.",
    )
