"""What the router knows of one replica."""

from __future__ import annotations

from router.chain.chain import fingerprint
from router.chain.digest import Digest
from router.fleet.health import Health, Standing
from router.fleet.load import LoadBook
from router.placement.view import ReplicaView
from router.wire.report import PrefillCost, ReplicaState


class Replica:
    """A member of the fleet: its address, standing, load, state and digest.

    It has no name until it told one, unless the configuration gives it (`name`); without either it is called
    by a fingerprint of its address, never by the address itself.
    """

    def __init__(self, url: str, name: str | None, failures_to_suspect: int) -> None:
        self.url = url
        # What it is called now, empty before it is known; the fleet keeps names different.
        self.name = name or ""
        self.configured_name = name
        self.health = Health(failures_to_suspect)
        self.load = LoadBook()
        self.models: tuple[str, ...] = ()
        self.state: ReplicaState | None = None
        self.digest: Digest | None = None
        self.digest_at = float("-inf")
        self.mismatch = False

    @property
    def wanted_name(self) -> str:
        """What it should be called: as configured, else as it says, else, once it answers, by its address."""
        if self.configured_name is not None:
            return self.configured_name
        if self.state is not None:
            return self.state.name
        return self.name or (self.anonymous_name if self.health.standing is Standing.READY else "")

    @property
    def anonymous_name(self) -> str:
        """A stable name for a replica that tells none."""
        return f"replica-{fingerprint(self.url.encode())[:8]}"

    @property
    def epoch(self) -> str:
        """The life of its cache, as far as known."""
        return self.state.epoch if self.state else self.anonymous_name

    @property
    def usable(self) -> bool:
        """Whether requests may be sent to it in good faith."""
        return self.health.standing is Standing.READY and bool(self.name)

    def take_state(self, state: ReplicaState | None) -> None:
        """Take what it told; another process or a cleared cache voids what was known of the one before."""
        if state is None or (self.state is not None and self.state.epoch != state.epoch):
            self.digest = None
            self.digest_at = float("-inf")
            if state is None or (self.state is not None and self.state.uid != state.uid):
                self.load.forget_report()
        self.state = state
        if state is not None:
            self.models = state.models

    def view(self, now: float, default_cost: PrefillCost) -> ReplicaView:
        """Return the replica as policies see it."""
        return ReplicaView(
            name=self.name,
            epoch=self.epoch,
            load=self.load.view(now),
            prefill=self.state.prefill if self.state else default_cost,
            digest=self.digest,
            digest_at=self.digest_at,
        )
