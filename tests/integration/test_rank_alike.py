"""Live routers and simulated ones rank alike on the same asks and views; a replay asks what was simulated.

Two routers of either kind are led through the same events: reports, digests, requests and their ends. The
live ones are their fleets with all that polls and answers would bring; nothing of theirs is rebuilt here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import chain as joined
from random import Random
from typing import Literal

import pytest

from loadgen.bench.quiet_fleet import QuietFleet, quiet_fleet
from loadgen.replay.options import ReplayOptions
from loadgen.replay.replay import replay_live
from loadgen.simulate.caches import ExactCaches
from loadgen.simulate.replica import Job, Replica
from loadgen.simulate.routers import Routers
from loadgen.simulate.scenario import Scenario
from loadgen.simulate.workload import MODEL, Request, Workload
from loadgen.traces.generate.kinds import generate
from loadgen.traces.trace import Trace
from router.chain.chain import Chain, ChainIdentity
from router.chain.options import ChainOptions
from router.config import LimitOptions
from router.fleet.load import Lease
from router.gateway.prepare import Preparer
from router.placement.ask import Ask, Choice, Ranking
from router.placement.digests import Caches
from router.placement.marks import Marks
from router.placement.policy import Policy
from router.placement.view import FleetView
from router.policies import load_policy, policy_names
from router.wire.report import LoadReport
from tests.router.scripted import rig

REPLICAS = 6
ROUTERS = 2
# The live fleet's may be any: what is compared is the chain's, which digests carry.
IDENTITY = ChainIdentity("tokens", "xxh3", 16, "root")


class Recorder:
    """A policy that keeps the last ranking, whole."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.last: Sequence[Choice] = ()

    def rank(self, ask: Ask, fleet: FleetView, now: float) -> Ranking:
        self.last = list(self._policy.rank(ask, fleet, now))
        return self.last

    def commit(self, ask: Ask, choice: Choice, now: float) -> None:
        self._policy.commit(ask, choice, now)


class OtherSlots:
    """Caches known by the simulation's slots, asked by the live board's."""

    def __init__(self, caches: Caches, slots: dict[int, int]) -> None:
        self._caches = caches
        self._slots = slots

    def held_blocks(self, chain: Chain, marks: Marks, slots: Sequence[int]) -> Sequence[int] | None:
        return self._caches.held_blocks(chain, marks, self._there(slots))

    def told_at(self, slots: Sequence[int]) -> Sequence[float]:
        return self._caches.told_at(self._there(slots))

    def _there(self, slots: Sequence[int]) -> Sequence[int]:
        return [self._slots[slot] for slot in slots]


@dataclass
class Live:
    """One live router: its fleet, its policy, and the leases that are open."""

    fleet: QuietFleet
    policy: Policy
    leases: dict[int, Lease] = field(default_factory=dict)


class Twins:
    """The same fleet twice: simulated, and as live routers know it."""

    def __init__(self, policy: str, live: list[Live]) -> None:
        scenario = Scenario(policy=policy, replicas=REPLICAS, routers=ROUTERS, cache_blocks=150)
        names = [f"r{number}" for number in range(REPLICAS)]
        self.replicas = [Replica(slot, name, 16, scenario, 1.0, 0.0) for slot, name in enumerate(names)]
        self.routers = Routers(scenario, self.replicas, REPLICAS)
        self.recorders = [Recorder(one) for one in self.routers.policies]
        self.routers.policies[:] = self.recorders
        self.routers.meet(self.replicas)
        self.live = live
        self._reports = 0
        self._decoding: list[tuple[Job, Replica]] = []
        self.report(self.replicas, 0.0)

    def report(self, replicas: Sequence[Replica], now: float) -> None:
        """All routers hear of these replicas' load."""
        self.routers.report(replicas, now)
        self._reports += 1
        for one in replicas:
            running = one.decodes + (one.serving is not None)
            load = LoadReport(one.work_seconds(now), running, len(one.queue), one.kv_usage(), self._reports)
            for router in self.live:
                router.fleet.tell(one.name, load, now)

    def tell_digest(self, replica: Replica, now: float) -> None:
        """All routers get a new digest of this replica, where there is one."""
        digest = replica.digest()
        if digest is not None:
            self.routers.digests.put(replica.slot, digest, now)
            for router in self.live:
                router.fleet.replicas[replica.name].take_digest(digest, now)

    def decide(self, number: int, request: Request, now: float) -> tuple[list[Choice], list[Choice]]:
        """Send a request through both routers of that number; return both rankings."""
        if self.routers.sees == "truth":
            self.report(self.replicas, now)
        live = self.live[number]
        ranked = list(live.policy.rank(request.ask, self._view(live, now), now))
        replica, choice = self.routers.decide(number, request, now)
        book = live.fleet.replicas[replica.name].load
        live.leases[request.number] = book.open(ranked[0].prefill_seconds, now, request.prompt_tokens)
        live.policy.commit(request.ask, ranked[0], now)
        replica.accept(Job(request, number, choice.expected_tokens))
        return list(self.recorders[number].last), ranked

    def go_on(self, replica: Replica, now: float) -> None:
        """End the prefill that is being served, and begin the next; its answer brings a report."""
        if replica.serving is not None:
            self._decoding.append((replica.serving, replica))
            replica.end()
        if replica.queue:
            replica.begin(now)
        self.report([replica], now)

    def end_decodes(self, now: float) -> None:
        """Answers end, and their leases with them."""
        for job, replica in self._decoding:
            replica.decodes -= 1
            self.routers.finished(job, replica)
            live = self.live[job.router]
            live.fleet.replicas[replica.name].load.close(live.leases.pop(job.request.number))
        self._decoding.clear()

    def _view(self, live: Live, now: float) -> FleetView:
        view = live.fleet.fleet.view(MODEL, now)
        if self.routers.sees == "reports":
            return view
        # What no live router can know, it is told here.
        slots = {live.fleet.replicas[replica.name].slot: replica.slot for replica in self.replicas}
        exact = ExactCaches(self.replicas, queued=self.routers.sees == "truth")
        return FleetView(view.roster, view.columns, OtherSlots(exact, slots), now)


def mixed_chats() -> Trace:
    """Chats with one system prompt, among others that share nothing."""
    alike = generate("chat", 5, conversations=12, turns=6, system_tokens=400, new_tokens=120).requests
    apart = generate("chat", 6, conversations=12, turns=6, system_tokens=0, new_tokens=150).requests
    others = [replace(one, block_ids=tuple(block + 1_000_000 for block in one.block_ids)) for one in apart]
    return Trace("mixed", 16, sorted([*alike, *others], key=lambda one: one.arrival_seconds))


@pytest.mark.parametrize("policy", policy_names())
async def test_live_and_simulated_routers_rank_alike(policy: str) -> None:
    draw = Random(2)
    names = [f"r{number}" for number in range(REPLICAS)]
    used = set()
    now = 0.0
    async with AsyncExitStack() as stack:
        live = [
            Live(await stack.enter_async_context(quiet_fleet(names, MODEL, IDENTITY)), load_policy(policy))
            for _ in range(ROUTERS)
        ]
        twins = Twins(policy, live)
        for request in Workload.of(mixed_chats()).requests:
            for replica in twins.replicas:
                # No two at once: how what is equal was rounded must decide nothing.
                now += draw.random() * 0.001
                if draw.random() < 0.3:
                    twins.report([replica], now)
                if draw.random() < 0.2:
                    twins.tell_digest(replica, now)
                if draw.random() < 0.25:
                    twins.go_on(replica, now)
            if draw.random() < 0.2:
                twins.end_decodes(now)
            now = max(now, request.arrival_seconds)
            simulated, alive = twins.decide(draw.randrange(ROUTERS), request, now)
            assert [facts(choice) for choice in alive] == [facts(choice) for choice in simulated]
            for one, other in zip(alive, simulated, strict=True):
                seconds = (other.score, other.wait_seconds, other.prefill_seconds)
                assert (one.score, one.wait_seconds, one.prefill_seconds) == pytest.approx(seconds, abs=1e-9)
            used.add(alive[0].name)
    # They were not all alike for want of choice.
    assert len(used) >= 3


def facts(choice: Choice) -> tuple[str, str, int, str]:
    return choice.name, choice.epoch, choice.expected_tokens, choice.reason


@pytest.mark.parametrize("form", ["tokens", "text"])
async def test_a_replay_shares_what_the_simulation_does(form: Literal["tokens", "text"]) -> None:
    trace = generate(
        "chat",
        7,
        conversations=6,
        turns=4,
        system_tokens=200,
        new_tokens=90,
        block_tokens=64,
        turn_seconds=0.1,
    )
    preparer = Preparer(ChainOptions(), {}, LimitOptions())
    async with rig(1) as up:
        options = ReplayOptions(url=up.router.address, model="m", prompt=form, in_flight=1)
        await replay_live(trace, options)
        bodies = list(up.replicas[0].bodies)
    try:
        asks = [(await preparer.prepare("/v1/completions", body, None)).ask for body in bodies]
    finally:
        preparer.close()
    simulated = [request.ask for request in Workload.of(trace).requests]
    assert len(asks) == len(simulated) == 24
    pairs = []
    for sent, ask in zip(asks, simulated, strict=True):
        # A canonical text begins with its kind, five bytes.
        assert sent.prompt_tokens == ask.prompt_tokens + (form == "text")
        assert sent.chain is not None
        assert ask.chain is not None
        # A block of the trace is four of the router's.
        pairs.append(list(zip(sent.chain.names[3::4], ask.chain.names, strict=True)))
    seen = set(joined.from_iterable(pairs))
    assert len(seen) == len({name for name, _ in seen}) == len({name for _, name in seen})
    # There is something to share, and something that is not.
    assert 24 < len(seen) < sum(map(len, pairs)) / 2
