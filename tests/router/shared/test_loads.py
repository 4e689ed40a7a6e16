"""Shared load: what each router has is counted in by all others, for as long as it is told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from router.config import RedisOptions
from router.fleet.board import Board
from router.fleet.load import LoadBook
from router.shared.connection import Connection
from router.shared.loads import MOST_ROUTERS, SharedLoad
from tests.redis_server import RedisServer, redis_server


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _book() -> LoadBook:
    board = Board()
    return LoadBook(board, board.take())


@dataclass
class Counted:
    name: str
    uid: str = "1"
    load: LoadBook = field(default_factory=_book)


@dataclass
class Counting:
    replicas: list[Counted]

    def counts(self, now: float) -> list[tuple[int, int, float]]:
        views = [one.load.view(now) for one in self.replicas]
        return [(view.in_flight, view.in_flight_tokens, view.own_work_seconds) for view in views]


class Router:
    """One router's share in it."""

    def __init__(self, server: RedisServer, clock: Clock, *replicas: Counted) -> None:
        self.fleet = Counting(list(replicas) or [Counted("a"), Counted("b")])
        options = RedisOptions(url=server.url, expire_seconds=5)
        self.connection = Connection(server.url, 2, 1, clock, lambda: 1.0)
        self.shared = SharedLoad(self.connection, options, self.fleet, clock)
        self.clock = clock

    def counts(self) -> list[tuple[int, int, float]]:
        return self.fleet.counts(self.clock.now)


async def test_each_counts_the_others_in_and_itself_once() -> None:
    clock = Clock()
    async with redis_server() as server, asyncio.timeout(20):
        routers = [Router(server, clock) for _ in range(3)]
        leases = []
        for number, router in enumerate(routers):
            book = router.fleet.replicas[0].load
            leases += [book.open(0.5, clock.now, 100) for _ in range(number + 1)]
        for _ in range(2):
            for router in routers:
                await router.shared.share()
        assert [router.counts() for router in routers] == [[(6, 600, 3.0), (0, 0, 0.0)]] * 3
        assert [router.fleet.replicas[0].load.in_flight for router in routers] == [1, 2, 3]
        assert [router.shared.routers for router in routers] == [2, 2, 2]
        # Absolute, not added up: however often it is told.
        for _ in range(5):
            for router in routers:
                await router.shared.share()
        assert routers[0].counts()[0] == (6, 600, 3.0)
        routers[2].fleet.replicas[0].load.close(leases[-1])
        for router in reversed(routers):
            await router.shared.share()
        assert routers[0].counts()[0] == (5, 500, 2.5)
        for router in routers:
            await router.connection.close()


async def test_counts_of_one_that_died_or_left_are_gone() -> None:
    clock = Clock()
    async with redis_server() as server, asyncio.timeout(20):
        one, dead, leaving = (Router(server, clock) for _ in range(3))
        for router in (dead, leaving):
            router.fleet.replicas[1].load.open(1.0, clock.now, 7)
            router.shared.start()
        while one.shared.routers < 2:
            await asyncio.sleep(0.01)
            await one.shared.share()
        assert one.counts()[1] == (2, 14, 2.0)
        await leaving.shared.stop()
        await one.shared.share()
        assert one.counts()[1] == (1, 7, 1.0)
        # This one says nothing any more, and Redis neither: its time is up here as well.
        await server.kill()
        await one.shared.share()
        assert one.counts()[1] == (1, 7, 1.0)
        clock.now += 4.9
        await one.shared.share()
        assert one.counts()[1][:2] == (1, 7)
        clock.now += 0.2
        await one.shared.share()
        assert one.counts()[1] == (0, 0, 0.0)
        assert one.shared.routers == 0
        await dead.shared.stop()
        for router in (one, dead, leaving):
            await router.connection.close()


async def test_counts_expire_by_the_clock_of_redis() -> None:
    clock = Clock()
    async with redis_server() as server, asyncio.timeout(20):
        one = Router(server, clock)
        brief = Router(server, clock)
        brief.shared._options = RedisOptions(url=server.url, expire_seconds=0.3)
        brief.fleet.replicas[0].load.open(1.0, clock.now, 7)
        await brief.shared.share()
        await one.shared.share()
        assert one.counts()[0] == (1, 7, 1.0)
        while one.shared.routers:
            await asyncio.sleep(0.02)
            await one.shared.share()
        assert one.counts()[0] == (0, 0, 0.0)
        for router in (one, brief):
            await router.connection.close()


async def test_another_life_of_a_replica_inherits_nothing() -> None:
    clock = Clock()
    async with redis_server() as server, asyncio.timeout(20):
        one, other = (Router(server, clock, Counted("a"), Counted("b")) for _ in range(2))
        other.fleet.replicas[0].load.open(1.0, clock.now, 7)
        await other.shared.share()
        await one.shared.share()
        assert one.counts() == [(1, 7, 1.0), (0, 0, 0.0)]
        one.fleet.replicas[0].uid = "2"
        await one.shared.share()
        assert one.counts() == [(0, 0, 0.0), (0, 0, 0.0)]
        other.fleet.replicas[0].uid = "2"
        await other.shared.share()
        await one.shared.share()
        assert one.counts() == [(1, 7, 1.0), (0, 0, 0.0)]
        for router in (one, other):
            await router.connection.close()


async def test_nonsense_and_crowds_are_bounded() -> None:
    clock = Clock()
    async with redis_server() as server, asyncio.timeout(20):
        one = Router(server, clock)
        members, told = one.shared._keys
        for number, raw in enumerate(
            ("", "x", "[]", '{"lasts_ms":5,"counts":[["a","1",-1,0,0]]}', '{"lasts_ms":5,"counts":[["a"]]}')
        ):
            await server.run("ZADD", members, "1e15", f"bad{number}")
            await server.run("HSET", told, f"bad{number}", raw)
        await one.shared.share()
        assert (one.counts(), one.shared.routers) == ([(0, 0, 0.0), (0, 0, 0.0)], 0)
        await server.run("FLUSHALL")
        for number in range(MOST_ROUTERS + 20):
            await server.run("ZADD", members, "1e15", f"r{number}")
            await server.run("HSET", told, f"r{number}", '{"lasts_ms":5000,"counts":[["a","1",1,0,0]]}')
        await one.shared.share()
        assert one.shared.routers == one.counts()[0][0] == MOST_ROUTERS
        await one.connection.close()


async def test_all_replicas_of_a_large_fleet_fit() -> None:
    many, clock = 256, Clock()
    async with redis_server() as server, asyncio.timeout(20):
        one, other = (Router(server, clock, *(Counted(f"r{n}") for n in range(many))) for _ in range(2))
        for replica in other.fleet.replicas:
            replica.load.open(0.1, clock.now, 10)
        await other.shared.share()
        await one.shared.share()
        assert one.counts() == [(1, 10, 0.1)] * many
        for router in (one, other):
            await router.connection.close()
