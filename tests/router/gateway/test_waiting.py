"""The waiting room: bounded in number and time, first come first served, and no stampede at its door."""

from __future__ import annotations

import asyncio

import pytest

from router.config import LimitOptions
from router.gateway.waiting import Turn, WaitingRoom
from router.observe.metrics import RouterMetrics
from router.wire.errors import ApiError, Source

REFUSAL = ApiError(503, "nobody", source=Source.ROUTER)


class _Door:
    """A fleet of so many replicas, each of which serves one of two models."""

    def __init__(self, **limits: float) -> None:
        self.replicas = 0
        self.serves: set[str] = set()
        self.tries = 0
        self.room = WaitingRoom(
            LimitOptions(**{"no_replica_wait_seconds": 5, **limits}),
            lambda: self.replicas,
            RouterMetrics(),
        )
        self.turns: list[tuple[int, Turn]] = []

    async def ask(self, number: int, model: str = "m") -> None:
        def find() -> bool:
            self.tries += 1
            return model in self.serves

        self.turns.append((number, await self.room.wait(find, REFUSAL)))

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
    assert door.tries == 6
    await _settled()
    assert door.tries == 6
    door.turns[0][1].end()
    door.opens("a")
    for _ in range(5):
        await _settled()
        door.turns[-1][1].end()
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
    door = _Door(no_replica_wait_seconds=0)
    with pytest.raises(ApiError, match="nobody"):
        await door.ask(0)


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

    def find() -> bool:
        raise ApiError(404, "no such model")

    wrong = asyncio.create_task(door.room.wait(find, REFUSAL))
    right = asyncio.create_task(door.ask(1))
    await _settled()
    door.opens("m")
    with pytest.raises(ApiError, match="no such model"):
        await wrong
    await right
