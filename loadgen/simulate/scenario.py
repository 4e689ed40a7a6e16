"""A scenario: everything that one simulated run depends on, but the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, field_validator

from router.settings import Options
from router.wire.report import PrefillCost


@dataclass(frozen=True, slots=True)
class Change:
    """At `at_seconds` the fleet grows by `count` empty replicas, or loses its last `-count` at once.

    The last one never goes.
    """

    at_seconds: Annotated[float, Field(ge=0, le=1e9, description="Beyond any trace's end.")]
    count: Annotated[int, Field(ge=-1024, le=1024, description="As many as a fleet has at most.")]


class Scenario(Options):
    """The fleet, its routers and what they know. Defaults are the study's of `affinity`."""

    policy: str = Field("affinity", description="Name of a policy, or a dotted name of your own.")
    policy_options: Mapping[str, Any] = Field(default_factory=dict, description="The policy's own options.")
    replicas: int = Field(16, ge=1, le=1024, description="Replicas at the start.")
    routers: int = Field(4, ge=1, le=64, description="Routers; each gets its share of the requests.")
    load_staleness_seconds: float = Field(
        0.25, ge=0, le=60, description="How often a replica's load reaches routers; 0 is always exact."
    )
    digest_seconds: float = Field(2.0, gt=0, le=600, description="How often a replica's digest is renewed.")
    cache_blocks: int = Field(2284, ge=1, le=10_000_000, description="Blocks in each replica's cache.")
    time_scale: float = Field(1.0, gt=0, le=1e6, description="Arrivals are divided by it: more is more load.")
    seed: int = Field(0, ge=0, description="Names of replicas, and which router gets which request.")
    warm_up_share: float = Field(0.1, ge=0, lt=1, description="The first share of requests is not counted.")
    decode_seconds_per_token: float = Field(0.025, ge=0, le=10, description="Time to a decoded token.")
    decode_slots: int = Field(64, ge=1, le=100_000, description="Decodes at which prefills slow down most.")
    decode_slowdown: float = Field(0.3, ge=0, le=10, description="How much slower prefills are then.")
    cost: PrefillCost = Field(default_factory=PrefillCost, description="S of every replica.")
    believed_scale: float = Field(
        1.0, gt=0, le=100, description="What everybody takes S for, as a multiple of what it is."
    )
    believed_scale_of_first: float = Field(
        1.0, gt=0, le=100, description="The same for the first replica alone, on top."
    )
    changes: Sequence[Change] = Field((), description="Replicas that come and go in mid-run.")
    misses: bool = Field(True, description="Find out why tokens were not in a cache; costs some time.")

    @field_validator("changes")
    @classmethod
    def _in_order(cls, changes: Sequence[Change]) -> Sequence[Change]:
        return tuple(sorted(changes, key=lambda change: change.at_seconds))
