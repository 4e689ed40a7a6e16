"""The fleet: keeps members, watches each, and gives policies their view of it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import aiohttp
import numpy as np

from router.chain.namers import Namers
from router.config import FleetOptions
from router.events.counts import EventCounts, EventMetrics
from router.events.hub import Hub
from router.fleet.board import Board
from router.fleet.calibration import Calibration
from router.fleet.health import Standing
from router.fleet.members import Member, MemberSource
from router.fleet.poller import Clock, Poller
from router.fleet.replica import Replica, State
from router.fleet.slow_start import SlowStart
from router.observe.metrics import RouterMetrics
from router.observe.prefill_metrics import PrefillMetrics, PrefillReading
from router.placement.ring import Ring
from router.placement.view import Column, FleetView, Roster

log = logging.getLogger("kvring.fleet")

_MOST_REPLICAS = 1024
# A start does not wait longer for a source that cannot be reached.
_FIRST_LIST_SECONDS = 2.0
# Sets of members that rings are kept for: of each model, and of the time before a change.
_MOST_RINGS = 32
# Longer than any scrape interval, so that the last counts of a member that left are seen.
_KEEP_COUNTERS_SECONDS = 900.0


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
        self._metrics = metrics
        self._clock = clock
        self._replicas: dict[str, Replica] = {}
        self._pollers: dict[str, Poller] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._members: dict[MemberSource, Sequence[Member]] = {}
        # When each kind of source was last known to be answered.
        self._answered: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._by_name: dict[str, Replica] = {}
        self._rings: dict[tuple[str, ...], Ring] = {}
        self._departed: dict[str, float] = {}
        self._drained: set[str] = set()
        self._board = Board()
        self._calibration = Calibration(options.calibration)
        metrics.registry.register(PrefillMetrics(self._prefill_readings))
        self._hub: Hub | None = None
        if options.events.source == "replica":
            self._hub = Hub()
            metrics.registry.register(EventMetrics(self._event_counts))
        self._serving: dict[str, Roster] = {}
        self._slow_start = SlowStart(lambda: self._options.warming_seconds)
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
        tasks = [*self._tasks, *self._watches.values()]
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
        return [source.kind for source in self._sources if source not in self._members]

    def by_name(self, name: str) -> Replica | None:
        """Return the member of that name."""
        return self._by_name.get(name)

    def models(self) -> list[str]:
        """Return the models that can be served now."""
        return sorted({model for replica in self._routable() for model in replica.models})

    def known_models(self) -> list[str]:
        """Return the models that some member serves, were it usable."""
        return sorted({model for replica in self._replicas.values() for model in replica.models})

    def context_tokens(self, model: str) -> int | None:
        """Return the shortest context among the replicas that serve `model`; None where none told."""
        told = [r.context_tokens for r in self._routable() if model in r.models]
        return min((tokens for tokens in told if tokens is not None), default=None)

    def view(self, model: str, now: float) -> FleetView:
        """Return the replicas that may serve `model`; those that warm only as far as their share goes."""
        roster = self._serving.get(model) or self._who_serves(model)
        table = self._board.table
        if self._slow_start:
            roster = self._slow_start.admitted(roster, table, now)
        table = table.take(roster.slots, axis=1)
        # One that never reported is taken as it stands now.
        np.minimum(table[Column.REPORTED_AT], now, out=table[Column.REPORTED_AT])
        return FleetView(roster, table, self._board.digests)

    def _who_serves(self, model: str) -> Roster:
        serving = [replica for replica in self._routable() if model in replica.models]
        # Dead ones too: what is home must not change for those that live on.
        members = tuple(
            sorted(r.name for r in self._replicas.values() if r.name and model in r.models and not r.twin)
        )
        roster = Roster(
            names=tuple(replica.name for replica in serving),
            epochs=tuple(replica.epoch for replica in serving),
            slots=np.array([replica.slot for replica in serving], dtype=np.int64),
            ring=self._ring_of(members),
            members=len(members),
        )
        if serving:
            # Only models that exist: names that clients make up must not fill memory.
            self._serving[model] = roster
        return roster

    def _ring_of(self, names: tuple[str, ...]) -> Ring:
        """Return the ring over these members; models with the same ones share it."""
        ring = self._rings.pop(names, None) or Ring(names)
        self._rings[names] = ring
        while len(self._rings) > _MOST_RINGS:
            del self._rings[next(iter(self._rings))]
        return ring

    def _routable(self) -> list[Replica]:
        usable = [replica for replica in self._replicas.values() if replica.usable]
        if usable:
            return usable
        # All look bad: more likely they are busy, or the network between is, than all broken at once.
        return [
            replica
            for replica in self._replicas.values()
            if replica.name and not replica.twin and replica.health.standing is Standing.SUSPECT
        ]

    async def _follow(self, source: MemberSource, told: asyncio.Event) -> None:
        async for members in source.watch():
            self._members[source] = members
            self._adopt([member for listed in self._members.values() for member in listed])
            told.set()

    def _adopt(self, members: Sequence[Member]) -> None:
        """Make the fleet what the sources say, by the difference. Another uid is another replica."""
        wanted: dict[str, Member] = {}
        for member in members[:_MOST_REPLICAS]:
            wanted.setdefault(member.url, member)
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
        )
        self._replicas[member.url] = replica
        self._pollers[member.url] = poller
        self._watches[member.url] = asyncio.create_task(poller.run())

    def _part_with(self, url: str) -> None:
        replica = self._replicas.pop(url)
        del self._pollers[url]
        self._watches.pop(url).cancel()
        self._drained.discard(url)
        replica.leave()
        if replica.name:
            log.info("replica %s left", replica.name)
            self._metrics.forget_gauges(replica.name)
            self._departed[replica.name] = self._clock()

    def _settle(self) -> None:
        """Take in that names, standings or members changed."""
        self._settle_twins()
        self._settle_names()
        for url, replica in self._replicas.items():
            if not replica.draining:
                self._drained.discard(url)
            elif url not in self._drained:
                self._drained.add(url)
                for call in self._on_drain:
                    call(replica)
        self._changed()

    def _changed(self) -> None:
        self._serving.clear()
        now = self._clock()
        self._slow_start.follow(
            {r.slot: r.warm_at or 0.0 for r in self._replicas.values() if r.usable and r.warms_until(now)}
        )
        for call in self._on_change:
            call()

    def _settle_twins(self) -> None:
        """Find who is a member by two addresses, as pods have with two families: one of them is used."""
        seen: set[str] = set()
        for replica in sorted(self._replicas.values(), key=lambda one: (one.twin, not one.usable)):
            uid = replica.state.uid if replica.state else ""
            replica.twin = bool(uid) and uid in seen
            seen.add(uid)

    def _settle_names(self) -> None:
        """Give every replica its name.

        Of two that want one name, as when a pod has moved and the old one is still listed, the usable one
        gets it and the other goes by its address.
        """
        taken: set[str] = set()
        for replica in sorted(
            self._replicas.values(), key=lambda one: (one.twin, one.configured_name is None, not one.usable)
        ):
            name = replica.wanted_name
            if name in taken:
                name = replica.anonymous_name
                if replica.name != name and not replica.twin:
                    log.warning("two replicas are called %s; one is now %s", replica.wanted_name, name)
            if replica.name and replica.name != name:
                self._metrics.forget_gauges(replica.name)
            replica.name = name
            if name:
                taken.add(name)
        self._by_name = {replica.name: replica for replica in self._replicas.values() if replica.name}

    def observe(self) -> None:
        """Bring the gauges up to date; called when metrics are read."""
        now = self._clock()
        self._forget_departed(now)
        metrics = self._metrics
        states = Counter(replica.stands(now).value for replica in self._replicas.values())
        for state in State:
            metrics.fleet_replicas.labels(state.value).set(states[state.value])
        self._observe_sources(now)
        for replica in self._replicas.values():
            if replica.name and not replica.twin:
                self._observe(replica, now)

    def _observe_sources(self, now: float) -> None:
        for source in self._sources:
            if source.up and source in self._members:
                self._answered[source.kind] = now
            self._metrics.discovery_up.labels(source.kind).set(source.up)
            if source.kind in self._answered:
                self._metrics.discovery_age.labels(source.kind).set(now - self._answered[source.kind])

    def _observe(self, replica: Replica, now: float) -> None:
        metrics, label, load = self._metrics, replica.name, replica.load
        view = load.view(now)
        metrics.replica_in_flight.labels(label).set(load.in_flight)
        metrics.replica_usable.labels(label).set(replica.usable)
        metrics.replica_work.labels(label).set(view.work_seconds)
        metrics.chain_mismatch.labels(label).set(replica.mismatch)
        if load.heard_at > float("-inf"):
            metrics.replica_kv_usage.labels(label).set(view.kv_usage)
            metrics.replica_running.labels(label).set(view.running)
            metrics.replica_waiting.labels(label).set(view.waiting)
        if replica.digest is not None:
            metrics.digest_age.labels(label).set(now - replica.digest_at)

    def _prefill_readings(self) -> list[PrefillReading]:
        return [replica.prefill_reading() for replica in self._replicas.values() if replica.name]

    def _event_counts(self) -> dict[str, EventCounts]:
        told = {self._replicas[url].name: poller.event_counts for url, poller in self._pollers.items()}
        return {name: counts for name, counts in told.items() if name and counts is not None}

    def _forget_departed(self, now: float) -> None:
        """Drop the counters of members that left a while ago, when all their requests have ended."""
        present = {replica.name for replica in self._replicas.values()}
        for name, left_at in list(self._departed.items()):
            if name in present:
                del self._departed[name]
            elif now - left_at > _KEEP_COUNTERS_SECONDS:
                del self._departed[name]
                self._metrics.forget_counters(name)
