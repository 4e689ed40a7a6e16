"""The fleet: keeps members, watches each, and gives policies their view of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

import aiohttp

from router.chain.namers import Namers
from router.config import FleetOptions
from router.events.counts import EventCounts, EventMetrics
from router.events.hub import Hub
from router.fleet.board import Board
from router.fleet.calibration import Calibration
from router.fleet.gauges import Gauges
from router.fleet.haste import Haste
from router.fleet.health import Standing
from router.fleet.members import Member, MemberSource
from router.fleet.naming import settle_names, settle_twins
from router.fleet.outliers import Outliers
from router.fleet.poller import Clock, Poller
from router.fleet.replica import Replica
from router.fleet.rosters import Rosters
from router.observe.metrics import RouterMetrics
from router.observe.prefill_metrics import PrefillMetrics, PrefillReading
from router.placement.view import FleetView

log = logging.getLogger("kvring.fleet")

_MOST_REPLICAS = 1024
# A start does not wait longer for a source that cannot be reached.
_FIRST_LIST_SECONDS = 2.0
_BEGIN_ANEW_SECONDS = 2.0


class Fleet:
    """All replicas. Names are unique; who serves what is worked out only when something changes.

    `options` may be replaced while it runs, but for where members come from.
    """

    def __init__(
        self,
        options: FleetOptions,
        sources: Sequence[MemberSource],
        session: aiohttp.ClientSession,
        namers: Namers,
        metrics: RouterMetrics,
        clock: Clock,
    ) -> None:
        self._options = options
        self._sources = sources
        self._session = session
        self._namers = namers
        self._clock = clock
        self._replicas: dict[str, Replica] = {}
        self._pollers: dict[str, Poller] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._parting: set[asyncio.Task[None]] = set()
        self._members: dict[MemberSource, Sequence[Member]] = {}
        self._broken: set[MemberSource] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._by_name: dict[str, Replica] = {}
        self._drained: set[str] = set()
        self._board = Board()
        self._calibration = Calibration(options.calibration)
        self._outliers = Outliers(lambda: self._options.outliers)
        self._haste = Haste()
        metrics.registry.register(PrefillMetrics(self._prefill_readings))
        self._hub: Hub | None = None
        if options.events.source == "replica":
            self._hub = Hub()
            metrics.registry.register(EventMetrics(self._event_counts))
        self._gauges = Gauges(metrics, sources)
        self._rosters = Rosters(self._replicas.values, self._routable, lambda: self._options.warming_seconds)
        self._on_change: list[Callable[[], None]] = []
        self._on_drain: list[Callable[[Replica], None]] = []

    @property
    def options(self) -> FleetOptions:
        """How the fleet is watched."""
        return self._options

    @options.setter
    def options(self, options: FleetOptions) -> None:
        self._options = options
        for poller in self._pollers.values():
            poller.options = options

    def on_change(self, call: Callable[[], None]) -> None:
        """Call `call` whenever other replicas may serve than before."""
        self._on_change.append(call)

    def on_drain(self, call: Callable[[Replica], None]) -> None:
        """Call `call` with each replica that begins to drain."""
        self._on_drain.append(call)

    async def start(self) -> None:
        """Follow every source; return once each has told its members, or has had its time to."""
        told = []
        for source in self._sources:
            told.append(asyncio.Event())
            self._tasks.append(asyncio.create_task(self._follow(source, told[-1])))
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LIST_SECONDS):
                for one in told:
                    await one.wait()

    async def stop(self) -> None:
        """Stop watching."""
        tasks = [*self._tasks, *self._watches.values(), *self._parting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._hub is not None:
            self._hub.close()

    @property
    def replicas(self) -> Sequence[Replica]:
        """Every member, routable or not."""
        return list(self._replicas.values())

    @property
    def routable_count(self) -> int:
        """How many members requests are sent to."""
        return len(self._routable())

    @property
    def members_told(self) -> dict[str, int | None]:
        """How many members each kind of source tells, None where it has not told any yet."""
        told = self._members
        return {one.kind: len(told[one]) if one in told else None for one in self._sources}

    @property
    def silent_sources(self) -> list[str]:
        """The kinds of sources that have not told any members yet."""
        return [kind for kind, members in self.members_told.items() if members is None]

    def by_name(self, name: str) -> Replica | None:
        """Return the member of that name."""
        return self._by_name.get(name)

    def models(self) -> list[str]:
        """Return the models that can be served now."""
        return [model for model in self.known_models() if self._routable(model)]

    def known_models(self) -> list[str]:
        """Return the models that some member serves, were it usable."""
        return sorted({model for replica in self._replicas.values() for model in replica.models})

    def context_tokens(self, model: str) -> int | None:
        """Return the shortest context among the replicas that serve `model`; None where none told."""
        told = [replica.context_tokens for replica in self._routable(model)]
        return min((tokens for tokens in told if tokens is not None), default=None)

    def view(self, model: str, now: float, everybody: bool = False) -> FleetView:
        """Return who may serve `model`; those that warm only as far as their share goes, or `everybody`."""
        board = self._board
        roster = self._rosters.of(model, board.columns, now, everybody)
        return FleetView(roster, tuple(map(roster.pick, board.columns)), board.digests, now)

    def _routable(self, model: str | None = None) -> list[Replica]:
        """Return who requests are sent to: for `model`, or for any."""
        serving = [one for one in self._replicas.values() if model is None or model in one.models]
        usable = [replica for replica in serving if replica.usable]
        if usable:
            return usable
        # All look bad: more likely they are busy, or the network between is, than all broken at once.
        return [
            replica
            for replica in serving
            if replica.name
            and not replica.twin
            and not replica.member.draining
            and replica.health.standing is Standing.SUSPECT
        ]

    async def _follow(self, source: MemberSource, told: asyncio.Event) -> None:
        while True:
            try:
                async for members in source.watch():
                    self._broken.discard(source)
                    self._note_emptiness(source, members)
                    self._members[source] = members
                    self._adopt([member for listed in self._members.values() for member in listed])
                    told.set()
            except Exception:
                # A fault of ours must not freeze the fleet: the last list stands, and it is begun anew.
                log.exception("following members by %s failed", source.kind)
                self._broken.add(source)
            await asyncio.sleep(_BEGIN_ANEW_SECONDS)

    def _note_emptiness(self, source: MemberSource, members: Sequence[Member]) -> None:
        """Say where a source tells of nobody: it may be asked for the wrong name."""
        alone = len(self._sources) == 1 or source.kind != "static"
        if alone and not members and self._members.get(source) != members:
            log.warning("there are no replicas by %s", source.kind)

    def _adopt(self, members: Sequence[Member]) -> None:
        """Make the fleet what the sources say, by the difference. Another uid is another replica."""
        wanted: dict[str, Member] = {}
        for member in members:
            wanted.setdefault(member.url, member)
        left_out = list(wanted)[_MOST_REPLICAS:]
        for url in left_out:
            del wanted[url]
        if left_out and not self._gauges.left_out:
            log.error("%d members beyond %d are left out", len(left_out), _MOST_REPLICAS)
        self._gauges.left_out = len(left_out)
        for url, replica in list(self._replicas.items()):
            if url not in wanted or wanted[url].uid != replica.member.uid:
                self._part_with(url)
        for url, member in wanted.items():
            if url in self._replicas:
                self._replicas[url].told(member)
            else:
                self._take_in(member)
        self._settle()

    def _take_in(self, member: Member) -> None:
        replica = Replica(
            member,
            self._options.failures_to_suspect,
            self._board,
            self._calibration,
            self._changed,
            self._outliers,
        )
        poller = Poller(
            replica,
            self._session,
            self._options,
            self._namers,
            self._clock,
            self._settle,
            lambda: len(self._replicas),
            self._hub,
            self._haste,
        )
        self._replicas[member.url] = replica
        self._pollers[member.url] = poller
        self._watches[member.url] = asyncio.create_task(poller.run())

    def _part_with(self, url: str) -> None:
        replica = self._replicas.pop(url)
        del self._pollers[url]
        watch = self._watches.pop(url)
        watch.cancel()
        # It still has to let go of what it follows.
        self._parting.add(watch)
        watch.add_done_callback(self._parting.discard)
        self._drained.discard(url)
        replica.leave()
        if replica.name:
            log.info("replica %s left", replica.name)
            self._gauges.left(replica.name, self._clock())

    def _settle(self) -> None:
        """Take in that names, standings or members changed."""
        replicas = self._replicas.values()
        settle_twins(replicas)
        settle_names(replicas, lambda name: self._gauges.left(name, self._clock()))
        self._by_name = {replica.name: replica for replica in replicas if replica.name}
        for url, replica in self._replicas.items():
            if not replica.draining:
                self._drained.discard(url)
            elif url not in self._drained:
                self._drained.add(url)
                for call in self._on_drain:
                    call(replica)
        self._changed()

    def _changed(self) -> None:
        self._rosters.changed(self._clock())
        for call in self._on_change:
            call()

    def observe(self) -> None:
        """Bring the gauges up to date; called when metrics are read."""
        told = {source for source in self._members if source not in self._broken}
        self._gauges.observe(self._replicas.values(), told, self._clock())

    def _prefill_readings(self) -> list[PrefillReading]:
        return [replica.prefill_reading() for replica in self._replicas.values() if replica.name]

    def _event_counts(self) -> dict[str, EventCounts]:
        told = {self._replicas[url].name: poller.event_counts for url, poller in self._pollers.items()}
        return {name: counts for name, counts in told.items() if name and counts is not None}
