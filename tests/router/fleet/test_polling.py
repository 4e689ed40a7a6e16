"""Polls: only of the silent, and never more than a router's budget, however many replicas there are."""

from __future__ import annotations

import aiohttp
import pytest

from router.chain.namers import Namers
from router.chain.options import ChainOptions
from router.config import FleetOptions
from router.fleet.board import Board
from router.fleet.calibration import Calibration
from router.fleet.members import Member
from router.fleet.poller import Poller
from router.fleet.replica import Replica
from router.wire.report import LoadReport
from tests.router.scripted import rig


def _poller(session: aiohttp.ClientSession, size: int) -> tuple[Replica, Poller]:
    options = FleetOptions()
    replica = Replica(Member("http://127.0.0.1:9", "r"), 2, Board(), Calibration(options.calibration))
    namers = Namers(ChainOptions(), {})
    return replica, Poller(replica, session, options, namers, lambda: 0.0, lambda: None, lambda: size)


@pytest.mark.parametrize(("size", "idle", "busy"), [(3, 0.25, 0.25), (50, 0.25, 0.25), (256, 2.0, 1.28)])
async def test_a_fleet_is_polled_within_the_budget(size: int, idle: float, busy: float) -> None:
    async with aiohttp.ClientSession() as session:
        replica, poller = _poller(session, size)
        replica.health.probe_passed(0.0)
        assert poller.due_at(100.0) == pytest.approx(100.0 + idle)
        lease = replica.load.open(1.0, 100.0)
        assert poller.due_at(100.0) == pytest.approx(100.0 + busy)
        # All of them, by eight routers: polls a second.
        assert 8 * size / busy <= 8 * FleetOptions().polls_per_second + 1e-6
        # Its answers tell: it is asked when they stop, and now and then for who it is.
        replica.load.answered(lease, LoadReport(1.0, 1, 0, 0.0, 1), 100.2)
        assert poller.due_at(100.0) == pytest.approx(min(100.2 + busy, 102.0))
        replica.load.reported(LoadReport(1.0, 1, 0, 0.0, 2), 101.9, 101.9)
        assert poller.due_at(100.0) == pytest.approx(102.0)


async def test_one_that_falls_silent_is_asked_ahead_of_its_time() -> None:
    async with aiohttp.ClientSession() as session:
        now = 100.0
        options = FleetOptions()
        replica = Replica(Member("http://127.0.0.1:9", "r"), 2, Board(), Calibration(options.calibration))
        poller = Poller(
            replica, session, options, Namers(ChainOptions(), {}), lambda: now, lambda: None, lambda: 256
        )
        replica.health.probe_passed(0.0)
        # Nothing is owed: nobody asks.
        assert not poller._fell_silent(99.0)
        lease = replica.load.open(1.0, 100.0)
        replica.stall.sent(lease, 0.0, 1.0, 100.0, streamed=True)
        now = 100.2
        assert not poller._fell_silent(99.0)
        now = 100.3
        assert poller._fell_silent(99.0)
        # Asked since, and answered: at the usual pace.
        assert not poller._fell_silent(100.26)
        replica.health.heard(100.28)
        assert not poller._fell_silent(99.0)
        now = 101.0
        assert poller._fell_silent(100.26)
        # One unanswered poll, and the next follows at once, however large the fleet.
        replica.stall.unanswered(101.0, 101.6, 0.0)
        assert poller.due_at(101.0) == pytest.approx(101.25)
        assert not poller._fell_silent(101.0)


async def test_who_answers_is_not_asked() -> None:
    """One of two replicas tells its load on every answer, the other never does."""
    fleet = {"state_poll_seconds": 0.2, "idle_poll_seconds": 600}
    async with rig(2, fleet=fleet, policy={"name": "round_robin"}) as up:
        talkative, silent = up.replicas
        talkative.tells_load = True
        before = talkative.states_asked
        asked = silent.states_asked + 8
        while silent.states_asked < asked:
            await up.post()
        assert talkative.states_asked - before <= 4


async def test_a_load_that_is_told_no_more_is_forgotten() -> None:
    async with aiohttp.ClientSession() as session:
        now = 100.0
        options = FleetOptions()
        replica = Replica(Member("http://127.0.0.1:9", "r"), 2, Board(), Calibration(options.calibration))
        poller = Poller(
            replica, session, options, Namers(ChainOptions(), {}), lambda: now, lambda: None, lambda: 1
        )
        replica.health.probe_passed(now)
        replica.load.reported(LoadReport(500.0, 8, 300, 0.9, 1), now, now)
        replica.load.open(1.0, now)
        assert (replica.load.backlog.queued, replica.load.requests) == (301, 309)
        # It may be busy as it told, and answer no poll for that.
        now += 9.0
        poller._forget_stale_load()
        assert replica.load.backlog.queued == 301
        # Nothing listens: it is down, and what it told is of no use after a few polls.
        await poller.poll()
        assert (replica.load.backlog.queued, replica.load.requests) == (0, 1)
        view = replica.load.view(now)
        assert (view.work_seconds, view.running, view.waiting) == (0.0, 0, 0)
        # It is believed again as soon as it tells, whatever number that has.
        replica.load.reported(LoadReport(5.0, 8, 30, 0.9, 1), now, now)
        assert replica.load.backlog.queued == 30
        replica.health.probe_passed(now)
        now += 10.5
        poller._forget_stale_load()
        assert replica.load.backlog.queued == 0
