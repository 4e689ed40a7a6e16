"""What the router knows of one replica."""

from __future__ import annotations

from collections.abc import Callable

from router.chain.chain import fingerprint
from router.chain.digest import Digest
from router.fleet.board import Board
from router.fleet.calibration import Calibration
from router.fleet.health import Health, Standing
from router.fleet.load import LoadBook
from router.observe.prefill_metrics import PrefillReading
from router.wire.report import PrefillCost, ReplicaState


class Replica:
    """A member of the fleet: its address, standing, load, state and digest.

    It has no name until it told one, unless the configuration gives it (`name`); without either it is called
    by a fingerprint of its address, never by the address itself.
    """

    def __init__(
        self,
        url: str,
        name: str | None,
        failures_to_suspect: int,
        board: Board,
        calibration: Calibration,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes a slot of the board until `leave`, and is priced by `calibration` under its number.

        `changed` is called when it may serve otherwise.
        """
        self.url = url
        # What it is called now, empty before it is known; the fleet keeps names different.
        self.name = name or ""
        self.configured_name = name
        self._board = board
        self._changed = changed
        self.slot = board.take()
        self.health = Health(failures_to_suspect, changed)
        self.load = LoadBook(board, self.slot)
        self._calibration = calibration
        calibration.join(self.slot, self._priced)
        self.models: tuple[str, ...] = ()
        self.state: ReplicaState | None = None
        self.digest: Digest | None = None
        self.digest_at = float("-inf")
        self.mismatch = False
        self._left = False

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
            self._board.digests.clear(self.slot)
            if state is None or (self.state is not None and self.state.uid != state.uid):
                self.load.forget_report()
                self._calibration.restarted(self.slot)
        before = self.epoch
        self.state = state
        if state is not None:
            self.serves(state.models)
            self._calibration.published(self.slot, state.prefill)
        if self.epoch != before:
            self._changed()

    def take_digest(self, digest: Digest, made_at: float) -> None:
        """Take a digest; one of another life of its cache says nothing."""
        if digest.epoch == self.epoch:
            self.digest, self.digest_at = digest, made_at
            self._board.digests.put(self.slot, digest, made_at)

    def serves(self, models: tuple[str, ...]) -> None:
        """Note which models it serves."""
        if models != self.models:
            self.models = models
            self._calibration.serves(self.slot, models[0] if models else "")
            self._changed()

    def computed(self, prompt_tokens: int, hit_tokens: int, seconds: float) -> None:
        """Note how long a prefill took, of which `hit_tokens` were cached."""
        if not self._left:
            self._calibration.observed(self.slot, prompt_tokens, hit_tokens, seconds)

    def prefill_reading(self) -> PrefillReading:
        """Return what its prefills are taken to cost, and how well that predicts."""
        cost, error = self._calibration.cost(self.slot), self._calibration.error(self.slot)
        if error is None:
            return PrefillReading(self.name, cost, 0, None, None)
        return PrefillReading(self.name, cost, error.observations, error.absolute, error.bias)

    def leave(self) -> None:
        """Give its slot back: it is no member any more."""
        # Its slot may soon be another's, while its last requests still run.
        self._left = True
        self.load.leave()
        self._calibration.leave(self.slot)
        self._board.give_back(self.slot)

    def _priced(self, cost: PrefillCost, factor: float) -> None:
        self._board.price(self.slot, cost)
        self.load.factor = factor
