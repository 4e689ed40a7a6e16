"""What the router knows of one replica."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from router.chain.chain import fingerprint
from router.chain.digest import Digest
from router.config import OutlierOptions
from router.engines.engine import EngineFacts, EngineLoad
from router.engines.estimate import others_work_seconds
from router.fleet.board import Board
from router.fleet.calibration import Calibration
from router.fleet.health import Health, Standing
from router.fleet.load import LoadBook
from router.fleet.members import Member
from router.fleet.outliers import Outliers
from router.fleet.stall import Stall
from router.observe.prefill_metrics import PrefillReading
from router.wire.report import PrefillCost, ReplicaState

# Of one that does not say what its prefills cost.
_LEAST_OBSERVATIONS = 8


class State(StrEnum):
    """Where a member is in its life; one that left is gone, and has none."""

    JOINING = "joining"
    WARMING = "warming"
    READY = "ready"
    SUSPECT = "suspect"
    DOWN = "down"
    DRAINING = "draining"


class Replica:
    """A member of the fleet: its address, standing, load, state and digest.

    It has no name until it told one, unless its source gives it; without either it is called by a fingerprint
    of its address, never by the address itself. What is known of it is of one life of its process: `epoch`
    names the life of its cache, and another process voids credit, load, price and what was held against it.
    """

    def __init__(
        self,
        member: Member,
        failures_to_suspect: int,
        board: Board,
        calibration: Calibration,
        changed: Callable[[], None] = lambda: None,
        outliers: Outliers | None = None,
    ) -> None:
        """Takes a slot of the board until `leave`; `calibration` and `outliers` know it by that number.

        `changed` is called when it may serve otherwise.
        """
        self.member = member
        # What it is called now, empty before it is known; the fleet keeps names different.
        self.name = member.name or ""
        # Another address of a replica that is a member already: nothing is sent here.
        self.twin = False
        self._board = board
        self._changed = changed
        self.slot = board.take()
        self.health = Health(failures_to_suspect, self._stands_otherwise)
        self.load = LoadBook(board, self.slot)
        self._calibration = calibration
        calibration.join(self.slot, self._priced)
        self._outliers = outliers or Outliers(OutlierOptions)
        pace = self._outliers.join(self.slot, self._slow)
        self.stall = Stall(self.health, pace.observed)
        self._on_trial = False
        self.models: tuple[str, ...] = ()
        self.state: ReplicaState | None = None
        self.facts: EngineFacts | None = None
        self.engine_load: EngineLoad | None = None
        # When it has its whole share; until then it warms. None before it was ready.
        self.warm_at: float | None = None
        self._restarts = 0
        # Whether nothing listened since it last told what it is.
        self._untouched = False
        # Of an engine, as told by who follows its events.
        self._followed_epoch = ""
        self.digest: Digest | None = None
        self.digest_at = float("-inf")
        self.mismatch = False
        # Why it is not ready, in words that tell no address.
        self.failing = ""
        self._left = False

    @property
    def url(self) -> str:
        """Where it serves."""
        return self.member.url

    @property
    def configured_name(self) -> str | None:
        """The name that its source gives it."""
        return self.member.name

    @property
    def wanted_name(self) -> str:
        """What it should be called: as configured, else as it says, else, once it answers, by its address."""
        if self.member.name is not None:
            return self.member.name
        if self.state is not None:
            return self.state.name
        return self.name or (self.anonymous_name if self.health.standing is Standing.READY else "")

    @property
    def anonymous_name(self) -> str:
        """A stable name for a replica that tells none."""
        return f"replica-{fingerprint(self.url.encode())[:8]}"

    @property
    def uid(self) -> str:
        """Names its process: as it says, else as its source does; empty where nobody does."""
        if self.state is not None:
            return self.state.uid
        process = self.facts.process if self.facts else ""
        return f"{self.member.uid}{process and ':'}{process}"

    @property
    def epoch(self) -> str:
        """The life of its cache, as far as known."""
        if self.state is not None:
            return self.state.epoch
        return self._followed_epoch or f"{self.uid or self.anonymous_name}:{self._restarts}"

    @property
    def engine(self) -> str:
        """What it runs, empty before that is known."""
        return "kvring" if self.state else self.facts.engine if self.facts else ""

    @property
    def model(self) -> str:
        """The model that its chain is of, empty before that is known."""
        return self.models[0] if self.models else ""

    @property
    def block_tokens(self) -> int:
        """Its KV block, 0 where that is not known."""
        if self.state is not None:
            return self.state.chain.block_tokens
        return (self.facts.block_tokens or 0) if self.facts else 0

    @property
    def context_tokens(self) -> int | None:
        """Its longest sequence; None where it does not tell."""
        if self.state is not None:
            return self.state.context_tokens
        return self.facts.context_tokens if self.facts else None

    @property
    def draining(self) -> bool:
        """Whether it ends what it runs and takes nothing new."""
        return self.member.draining or self.health.standing is Standing.DRAINING

    @property
    def idle(self) -> bool:
        """Whether it does nothing, as far as known."""
        report = self.load.report
        told = self.engine_load if report is None else report
        return not self.load.in_flight and (told is None or told.running + told.waiting == 0)

    @property
    def usable(self) -> bool:
        """Whether requests may be sent to it in good faith."""
        return (
            self.health.standing is Standing.READY
            and bool(self.name)
            and not self.member.draining
            and not self.twin
        )

    @property
    def speed_is_known(self) -> bool:
        """Whether what is expected of it rests on more than a guess."""
        error = self._calibration.error(self.slot)
        return self.state is not None or (error is not None and error.observations >= _LEAST_OBSERVATIONS)

    def stands(self, now: float) -> State:
        """Say where it is in its life."""
        if self.draining:
            return State.DRAINING
        if self.health.standing is Standing.READY and self.warms_until(now):
            return State.WARMING
        return State(self.health.standing.value)

    def told(self, member: Member) -> None:
        """Take what its source tells of it now."""
        if member != self.member:
            self.member = member
            self._changed()

    def take_state(self, state: ReplicaState) -> None:
        """Take what it told; another process or a cleared cache voids what was known of the one before."""
        before = self.epoch
        if self.facts is not None or (self.state is not None and self.state.uid != state.uid):
            self._restarted()
        elif self.state is None or self.state.epoch != state.epoch:
            self._forget_digest()
        if self.facts is not None:
            self.facts = self.engine_load = None
            self._followed_epoch = ""
        self.state = state
        self.serves(state.models)
        self._calibration.published(self.slot, state.prefill)
        if self.epoch != before:
            self._changed()

    def take_facts(self, facts: EngineFacts) -> None:
        """Take what an engine is that is not ours."""
        known = (self.facts.engine, self.facts.process) if self.facts else None
        another = known is not None and known != (facts.engine, facts.process)
        # One that names no process may be another since nothing listened; so is one in the place of ours.
        if another or (self._untouched and not facts.process) or self.state is not None:
            self.state = None
            self._restarted()
        self._untouched = False
        self.facts = facts
        self.serves(facts.models)

    def take_engine_load(self, load: EngineLoad, now: float) -> None:
        """Take what an engine tells of its load, in seconds as far as they can be estimated."""
        if self.facts is not None and load.process and self.facts.process not in ("", load.process):
            self._restarted()
            # What else is new is asked for next.
            self.facts = replace(self.facts, process=load.process)
        self.engine_load = load
        cost = self._calibration.cost(self.slot)
        book = self.load
        work = others_work_seconds(
            load,
            book.waiting_for_answers,
            book.mean_seconds,
            lambda tokens: cost.seconds(tokens, 0),
        )
        book.estimated(work, load.running, load.waiting, load.kv_usage, now)
        self.stall.told(work, load.running, load.kv_usage, now)

    def forget_load(self, now: float) -> None:
        """Forget what it told of its load: it tells nothing any more, and this would be believed for ever."""
        self.engine_load = None
        self.load.forget_report()
        self.stall.told(0.0, 0, 0.0, now)

    def take_digest(self, digest: Digest, made_at: float) -> None:
        """Take a digest; one of another life of its cache says nothing.

        Of an engine, the digest itself tells which life that is.
        """
        if self.state is None and digest.epoch != self._followed_epoch:
            self._followed_epoch = digest.epoch
            self._forget_digest()
            self._changed()
        if digest.epoch == self.epoch:
            self.digest, self.digest_at = digest, made_at
            self._board.digests.put(self.slot, digest, made_at)

    def digest_still_true(self, made_at: float) -> None:
        """Note that its digest has not changed since."""
        if self.digest is not None:
            self.digest_at = made_at
            self._board.digests.still_true(self.slot, made_at)

    def lost_touch(self) -> None:
        """Note that nothing listens at its address: who answers next, and does not say, may be another."""
        self._untouched = True

    def serves(self, models: tuple[str, ...]) -> None:
        """Note which models it serves."""
        if models != self.models:
            self.models = models
            self._calibration.serves(self.slot, self.model)
            self._outliers.serves(self.slot, self.model)
            self._changed()

    def passed(self, now: float, warming_seconds: float, draining: bool = False) -> None:
        """Note that a probe was answered as it should be."""
        if not draining:
            # Before it is ready: whoever hears of that must know that it warms.
            if self.health.returns(now):
                # Half open: one request first, and more bit by bit, until one has been served.
                self._on_trial, self.warm_at = True, now + warming_seconds
                self._outliers.returned(self.slot)
            else:
                self.warms(now, warming_seconds)
        self.health.probe_passed(now, draining=draining)

    def warms(self, now: float, warming_seconds: float) -> None:
        """Give it its share bit by bit, over what is left of `warming_seconds` of serving; once in its life.

        Of an engine that does not tell how long it has served this is when it was first seen ready.
        """
        if self.warm_at is None:
            served = self.state.serving_seconds if self.state else 0.0
            self.warm_at = now + max(0.0, warming_seconds - served)

    def warms_until(self, now: float) -> float:
        """Return for how many seconds it still warms, 0 where it does not."""
        return max(0.0, self.warm_at - now) if self.warm_at is not None else 0.0

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
        self._outliers.leave(self.slot)
        self._board.give_back(self.slot)

    def _restarted(self) -> None:
        """Forget all that was known of the process before."""
        self._restarts += 1
        self._followed_epoch = ""
        self._forget_digest()
        self.load.forget_report()
        self._calibration.restarted(self.slot)
        self._outliers.restarted(self.slot)
        self.stall.clear()
        self._on_trial = False
        self.health.restarted()
        self.warm_at = None
        self.mismatch = False
        self._changed()

    def _slow(self, now: float) -> None:
        self.stall.clear()
        self.health.slow(now)

    def _stands_otherwise(self) -> None:
        if self._on_trial and not self.health.on_trial and self.health.standing is Standing.READY:
            # A request was served: the trial is over.
            self._on_trial, self.warm_at = False, float("-inf")
        self._changed()

    def _forget_digest(self) -> None:
        self.digest = None
        self.digest_at = float("-inf")
        self._board.digests.clear(self.slot)

    def _priced(self, cost: PrefillCost, factor: float) -> None:
        self._board.price(self.slot, cost)
        self.load.factor = factor
