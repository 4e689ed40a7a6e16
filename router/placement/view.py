"""The fleet view: a frozen picture of the replicas that may be ranked, and of their load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.chain.digest import Digest
from router.placement.ring import Ring
from router.wire.report import PrefillCost


@dataclass(frozen=True, slots=True)
class LoadView:
    """One replica's load: what it last reported, and what this router has sent it since.

    `work_seconds` of uncached prefill were queued at `reported_at`; `own_work_seconds` were dispatched by
    this router and are not in that report. `in_flight` counts this router's leases, `dispatched` all that
    it ever took.
    """

    work_seconds: float = 0.0
    reported_at: float = 0.0
    own_work_seconds: float = 0.0
    in_flight: int = 0
    dispatched: int = 0
    running: int = 0
    waiting: int = 0

    def wait_seconds(self, now: float) -> float:
        """Return how long a request sent now would wait for its prefill to begin."""
        return max(0.0, self.work_seconds + self.own_work_seconds - (now - self.reported_at))


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica as a policy sees it. `epoch` names the life of its cache: credit never outlives it."""

    name: str
    epoch: str
    load: LoadView = field(default_factory=LoadView)
    prefill: PrefillCost = field(default_factory=PrefillCost)
    digest: Digest | None = None
    digest_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class FleetView:
    """The replicas that may serve an ask, in no particular order, and the ring over all members.

    `members` counts those that serve the model, dead ones included: what is a fair share must not change
    when one of them dies. Where it is 0, `replicas` are all there are.
    """

    replicas: Sequence[ReplicaView]
    ring: Ring
    members: int = 0
