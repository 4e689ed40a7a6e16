"""Watches one replica: asks it how it is, more seldom where its answers tell, and notes what is learned."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import aiohttp

from router.chain.chain import ChainIdentity
from router.chain.namers import Namers
from router.config import FleetOptions
from router.events.counts import EventCounts
from router.events.hub import Hub
from router.fleet.digest_reader import DigestReader
from router.fleet.fetch import Delayed, Fetcher, json_object
from router.fleet.following import Following
from router.fleet.haste import Haste
from router.fleet.health import Standing
from router.fleet.other_engine import OtherEngine
from router.fleet.replica import Replica
from router.wire.report import ReplicaState

log = logging.getLogger("kvring.fleet")

# Polls of many replicas are spread by so much, so that they do not come in beats.
_JITTER = 0.1
_PIECE_SECONDS = 0.25
# So many intervals after it last told its load, nobody knows how that is now.
_STALE_POLLS = 4
# Polls of one that does not answer, before they come less often, up to so seldom.
_PATIENT_POLLS = 20
_LONGEST_ABSENCE_SECONDS = 5.0

Clock = Callable[[], float]


class Poller:
    """Watches one replica until cancelled. `options` may be replaced while it runs."""

    def __init__(
        self,
        replica: Replica,
        session: aiohttp.ClientSession,
        options: FleetOptions,
        namers: Namers,
        clock: Clock,
        changed: Callable[[], None],
        fleet_size: Callable[[], int],
        hub: Hub | None = None,
        haste: Haste | None = None,
    ) -> None:
        """`namers` tell how this router names blocks, by model.

        `changed` is called where a poll changed the replica's standing or the name it wants; `fleet_size`
        counts those who share this router's polls, `hub` is what followers of KV events share, and `haste`
        what polls ahead of their time are taken from.
        """
        self._options = options
        self._replica = replica
        self._namers = namers
        self._clock = clock
        self._changed = changed
        self._fleet_size = fleet_size
        self._haste = haste or Haste()
        self._polls = Fetcher(replica.url, session, lambda: self._options.hung.poll_timeout_seconds)
        patient = Fetcher(replica.url, session, lambda: self._options.probe_timeout_seconds)
        self._digests = DigestReader(replica, patient, clock)
        self._following = Following(replica, namers, options.events, clock, hub)
        self._other = OtherEngine(
            replica, self._polls, patient, self._digests, self._following, options, namers, clock
        )
        self._digest_due = 0.0
        # Why the last probe failed, empty where it did not.
        self._failing = ""
        # How often nobody answered, in a row.
        self._unreached = 0
        self._logged: Standing | None = replica.health.standing

    @property
    def options(self) -> FleetOptions:
        """How it is watched."""
        return self._options

    @options.setter
    def options(self, options: FleetOptions) -> None:
        self._options = self._other.options = options
        self._replica.health.limit = options.failures_to_suspect

    @property
    def event_counts(self) -> EventCounts | None:
        """What came of following the replica's KV events; None where they are not followed."""
        return self._following.counts

    async def run(self) -> None:
        """Poll until cancelled; whatever a replica answers, polling goes on."""
        replica = self._replica
        try:
            while True:
                was = replica.health.standing, replica.wanted_name
                asked_at = self._clock()
                try:
                    await self.poll()
                except Exception:
                    log.exception("polling %s failed", replica.url)
                if (replica.health.standing, replica.wanted_name) != was:
                    self._changed()
                await self._pause(asked_at)
        finally:
            await self._following.stop()

    async def poll(self) -> None:
        """Ask once, and note what was learned."""
        replica = self._replica
        asked_at = self._clock()
        try:
            await self._ask(asked_at)
            self._failing, self._unreached = "", 0
            if replica.speed_is_known:
                replica.stall.judge(self._clock(), self._options.hung.silence_seconds)
            ready = replica.health.standing is Standing.READY
            replica.failing = "" if ready else replica.health.why or "not ready yet"
        except Delayed:
            # Held against nobody: it was this router that did not come to read the answer.
            self._say("this router was late itself")
        except (aiohttp.ClientConnectorError, ConnectionResetError) as error:
            self._note_failure(error, asked_at, reachable=False)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._note_failure(error, asked_at, reachable=True)
        self._forget_stale_load()
        standing = replica.health.standing
        if standing is not self._logged:
            # Requests that failed may have changed it since the last poll.
            self._logged = standing
            why = f": {replica.failing}" if replica.failing else ""
            log.info("replica %s is %s%s", replica.name or replica.url, standing.value, why)

    def due_at(self, asked_at: float) -> float:
        """Return when to ask again: after the interval without news, at the latest after a longer one.

        Who tells its load with its answers need not be asked for it, only who it is and what it holds.
        """
        replica, options = self._replica, self._options
        share = self._share_seconds()
        interval = max(options.state_poll_seconds, share)
        longest = max(interval, options.idle_poll_seconds)
        if replica.health.doubted:
            # The second of two polls that tell hung ones apart.
            return asked_at + min(interval, options.state_poll_seconds)
        if replica.health.standing is not Standing.READY:
            # What has not been there for long is looked for less often.
            longer = 2.0 ** min(16, max(0, self._unreached - _PATIENT_POLLS))
            return asked_at + max(interval, min(_LONGEST_ABSENCE_SECONDS, interval * longer))
        if replica.idle and share > options.state_poll_seconds:
            # Polls are short: those that do nothing leave theirs to the others.
            return asked_at + longest
        return min(max(asked_at, replica.load.heard_at) + interval, asked_at + longest)

    def _share_seconds(self) -> float:
        """Return how often the budget allows for one replica."""
        return self._fleet_size() / self._options.polls_per_second

    def _forget_stale_load(self) -> None:
        """Forget a load told long ago: one that was full then would be passed by for ever."""
        replica, options = self._replica, self._options
        longest = _STALE_POLLS * max(options.state_poll_seconds, self._share_seconds())
        if replica.health.standing is Standing.READY:
            # Merely busy, it may have as much to do as it told.
            longest = max(longest, options.hung.busy_seconds)
        now = self._clock()
        if float("-inf") < replica.load.heard_at < now - longest:
            replica.forget_load(now)

    async def _pause(self, asked_at: float) -> None:
        """Wait until it should be asked again; answers may put that off meanwhile."""
        late = random.uniform(1 - _JITTER, 1 + _JITTER)
        while (left := asked_at + (self.due_at(asked_at) - asked_at) * late - self._clock()) > 0:
            if self._fell_silent(asked_at) and self._haste.take(
                self._options.polls_per_second, self._clock()
            ):
                return
            # In pieces: a replica that a request found down is not left alone for so long.
            await asyncio.sleep(min(left, max(_PIECE_SECONDS, self._options.state_poll_seconds)))

    def _fell_silent(self, asked_at: float) -> bool:
        """Whether nothing came for an interval from one that owes answers, which has not been asked since."""
        replica = self._replica
        since = replica.stall.silent_since
        if since is None or not replica.load.in_flight or replica.health.standing is not Standing.READY:
            return False
        late_at = max(since, replica.load.heard_at) + self._options.state_poll_seconds
        return asked_at < late_at <= self._clock()

    async def _ask(self, asked_at: float) -> None:
        other = self._other.known and not self._other.due
        if self._options.engine not in ("auto", "kvring") or (other and self._options.engine == "auto"):
            await self._other.ask()
            return
        answer = await self._polls.get("/state")
        if answer.status in (404, 405) and self._options.engine == "auto":
            await self._other.ask()
            return
        if answer.status == 503:
            self._replica.health.not_ready()
            return
        if answer.status != 200:
            raise ValueError(f"/state answered {answer.status}")
        await self._take(ReplicaState.from_json(json_object(answer.body)), asked_at)

    async def _take(self, state: ReplicaState, asked_at: float) -> None:
        """Take what a replica of ours tells of itself, and its digest where that is due."""
        replica = self._replica
        if replica.epoch != state.epoch:
            self._digest_due = 0.0
            self._digests.forget()
        replica.take_state(state)
        self._compare(state)
        now = self._clock()
        replica.load.reported(state.load, covers_until=asked_at, now=now)
        replica.stall.told(state.load.work_seconds, state.load.running, state.load.kv_usage, now)
        if not state.ready:
            replica.health.not_ready()
            return
        replica.passed(now, self._options.warming_seconds, draining=state.draining)
        if now >= self._digest_due and not replica.mismatch:
            self._digest_due = now + self._options.digest_poll_seconds
            await self._digests.read(replica.url, state.chain.fingerprint)

    def _compare(self, state: ReplicaState) -> None:
        """Say once, and loudly, where a replica's names of blocks cannot be compared with ours."""
        replica = self._replica
        ours = self._namers.identity_of(self._replica.model)
        mismatch = ours != state.chain
        if mismatch and not replica.mismatch:
            fields = [
                f"{name}: {getattr(state.chain, name)!r} there, {getattr(ours, name)!r} here"
                for name in ChainIdentity.__slots__
                if getattr(state.chain, name) != getattr(ours, name)
            ]
            log.warning(
                "replica %s names blocks otherwise than this router (%s): its digests are not used; %s",
                replica.name or replica.url,
                "; ".join(fields),
                _mending(state.chain, ours, replica.model),
            )
        replica.mismatch = mismatch

    def _note_failure(self, error: Exception, asked_at: float, reachable: bool) -> None:
        """Note a failed probe."""
        replica = self._replica
        self._say(str(error) or type(error).__name__)
        if isinstance(error, TimeoutError):
            replica.failing = "no answer in time"
            self._unreached += 1
            # Ours answers also while it computes.
            busy = 0.0 if replica.state is not None else self._options.hung.busy_seconds
            replica.stall.unanswered(asked_at, self._clock(), busy)
            return
        if reachable:
            replica.failing = "answers amiss"
            replica.health.probe_failed(self._clock(), asked_at)
            return
        replica.failing = "nothing listens there"
        self._unreached += 1
        if replica.health.standing is not Standing.DOWN:
            replica.health.unreachable()
            # Another program may come up at this address.
            self._other.forget()
            replica.lost_touch()

    def _say(self, reason: str) -> None:
        """Log why a probe failed, where that is another reason than the last time."""
        if reason != self._failing:
            name = self._replica.name or self._replica.url
            log.warning("probe of replica %s failed: %s", name, reason[:500])
        self._failing = reason


def _mending(theirs: ChainIdentity, ours: ChainIdentity, model: str) -> str:
    """Say how that is mended."""
    if theirs.kind == "tokens" and ours.kind == "bytes":
        return f"set models.{model!r}.tokenizer_directory here, to the files that the replica has"
    if theirs.tokenizer_fingerprint != ours.tokenizer_fingerprint:
        return "give both the same tokenizer files"
    return "give both the same [chain]; `kvring doctor` tells which option"
