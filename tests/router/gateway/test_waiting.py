"""The waiting room: bounded in number and time, first come first served, and no stampede at its door."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from router.config import LimitOptions
from router.gateway.waiting import Turn, WaitingRoom
from router.observe.metrics import RouterMetrics
from router.wire.errors import ApiError, Source

REFUSAL = ApiError(503, "nobody", source=Source.ROUTER)


class _Door:
    """A fleet of so many replicas, each of which serves the same models."""

    def __init__(self, **limits: float) -> None:
        self.replicas = 0
        self.serves: set[str] = set()
        self.tries = 0
        self.counts = 0
        self.metrics = RouterMetrics()
        self.room = WaitingRoom(
            LimitOptions(**{"no_replica_wait_seconds": 5, **limits}), self.count, self.metrics
        )
        self.turns: list[tuple[int, Turn]] = []

    def count(self, model: str) -> int:
        self.counts += 1
        return self.replicas if model in self.serves else 0

    async def ask(self, number: int, model: str = "m") -> None:
        def find() -> ApiError | None:
            self.tries += 1
            return None if model in self.serves else REFUSAL

        self.room.admit(REFUSAL, inf)
        until = asyncio.get_running_loop().time() + self.room.limits.no_replica_wait_seconds
        self.turns.append((number, await self.room.wait(model, find, REFUSAL, until)))

    def shed(self, reason: str) -> float:
        value = self.metrics.registry.get_sample_value("kvring_shed_total", {"reason": reason})
        return value or 0.0

    def opens(self, *models: str, replicas: int = 1) -> None:
        self.serves, self.replicas = set(models), replicas
        self.room.changed()


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_those_who_wait_go_in_order_and_no_more_than_fit_at_once() -> None:
    door = _Door(released_per_replica=2)
    asked = [asyncio.create_task(door.ask(number)) for number in range(10)]
    await _settled()
    assert len(door.room) == 10
    door.opens("m", replicas=2)
    await _settled()
    assert [number for number, _ in door.turns] == [0, 1, 2, 3]
    door.turns[1][1].end()
    door.turns[1][1].end()
    await _settled()
    assert [number for number, _ in door.turns] == [0, 1, 2, 3, 4]
    for _, turn in door.turns:
        turn.end()
    await _settled()
    assert len(door.turns) == 9
    for _, turn in door.turns:
        turn.end()
    await asyncio.gather(*asked)
    assert [number for number, _ in door.turns] == list(range(10))
    assert not len(door.room)


async def test_who_finds_nobody_for_its_model_lets_others_pass_and_does_not_spin() -> None:
    door = _Door(released_per_replica=1)
    asked = [asyncio.create_task(door.ask(number, "a" if number < 5 else "b")) for number in range(6)]
    await _settled()
    door.opens("b")
    await _settled()
    assert [number for number, _ in door.turns] == [5]
    # One speaks for all five.
    assert door.tries == 2
    door.turns[0][1].end()
    await _settled()
    assert door.tries == 2
    door.opens("a")
    for _ in range(5):
        await _settled()
        door.turns[-1][1].end()
    await asyncio.gather(*asked)
    assert [number for number, _ in door.turns] == [5, 0, 1, 2, 3, 4]


async def test_a_change_costs_no_more_where_many_wait_before_a_large_fleet() -> None:
    door = _Door(waiting_requests=4096)
    door.replicas = 1024
    asked = [asyncio.create_task(door.ask(number, f"m{number % 4}")) for number in range(4096)]
    await _settled()
    for _ in range(1000):
        door.room.changed()
    await _settled()
    assert (door.tries, door.counts) == (4, 4)
    # Those who may go do so bit by bit, and others are served in between.
    door.opens("m0", "m1", "m2", "m3", replicas=1024)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < len(door.turns) < 100
    await asyncio.gather(*asked)
    assert len(door.turns) == 4096
    assert door.counts < 4096 / 8
    for model in range(4):
        mine = [number for number, _ in door.turns if number % 4 == model]
        assert mine == sorted(mine)


async def test_each_model_has_its_own_share_of_who_is_let_go() -> None:
    door = _Door(released_per_replica=2)
    asked = [asyncio.create_task(door.ask(number, "ab"[number % 2])) for number in range(8)]
    await _settled()
    assert door.room.waits("a")
    door.opens("a", "b")
    await _settled()
    assert sorted(number for number, _ in door.turns) == [0, 1, 2, 3]
    while not all(one.done() for one in asked):
        door.turns[-1][1].end()
        for _, turn in door.turns:
            turn.end()
        await _settled()
    assert not door.room.waits("a")
    assert not door.room.waits("b")


async def test_a_turn_does_not_last_as_long_as_a_long_answer() -> None:
    door = _Door(released_per_replica=1)
    asked = [asyncio.create_task(door.ask(number)) for number in range(2)]
    await _settled()
    door.opens("m")
    await _settled()
    assert [number for number, _ in door.turns] == [0]
    # The first never ends its turn.
    await asyncio.gather(*asked)
    for _, turn in door.turns:
        turn.end()
    assert not door.room.waits("m")


async def test_who_was_called_for_nothing_is_the_first_again() -> None:
    door = _Door(released_per_replica=1)
    asked = [asyncio.create_task(door.ask(number)) for number in range(3)]
    await _settled()
    # Called, but gone again before it came.
    door.opens("m")
    door.opens("other")
    await _settled()
    assert not door.turns
    door.opens("m")
    await _settled()
    assert [number for number, _ in door.turns] == [0]
    door.turns[0][1].end()
    await _settled()
    assert [number for number, _ in door.turns] == [0, 1]
    door.turns[1][1].end()
    await asyncio.gather(*asked)


async def test_it_is_bounded_in_number_and_in_time() -> None:
    door = _Door(waiting_requests=1, no_replica_wait_seconds=0.05)
    first = asyncio.create_task(door.ask(0))
    await _settled()
    with pytest.raises(ApiError, match="too many requests wait") as full:
        await door.ask(1)
    assert full.value.status == 503
    assert full.value.retry_after_seconds
    with pytest.raises(ApiError, match="nobody"):
        await first
    assert (door.shed("waiting_requests"), door.shed("no_replica")) == (1, 1)
    assert not len(door.room)
    # Who may not wait at all is turned away for the same reason, and so is who has waited already.
    door = _Door(no_replica_wait_seconds=0)
    with pytest.raises(ApiError, match="nobody"):
        await door.ask(0)
    assert door.shed("no_replica") == 1
    door = _Door()
    with pytest.raises(ApiError, match="nobody"):
        door.room.admit(REFUSAL, asyncio.get_running_loop().time())
    assert door.shed("no_replica") == 1


async def test_who_leaves_gives_its_turn_on() -> None:
    door = _Door(released_per_replica=1)
    first, second = (asyncio.create_task(door.ask(number)) for number in range(2))
    await _settled()
    door.opens("m")
    # Called, but gone before it could go.
    first.cancel()
    await _settled()
    assert [number for number, _ in door.turns] == [1]
    await second
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_request_that_turns_out_wrong_gives_its_turn_on() -> None:
    door = _Door(released_per_replica=1)

    def find() -> ApiError | None:
        raise ApiError(404, "no such model")

    until = asyncio.get_running_loop().time() + 5
    wrong = asyncio.create_task(door.room.wait("m", find, REFUSAL, until))
    right = asyncio.create_task(door.ask(1))
    await _settled()
    door.opens("m")
    with pytest.raises(ApiError, match="no such model"):
        await wrong
    await right
