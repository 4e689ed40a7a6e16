"""When sessions begin: `Open` by the clock, whatever the answers do; `Closed` once another has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Protocol

from loadgen.workloads.session import Session

Converse = Callable[[Session], Awaitable[None]]
Pause = Callable[[float], Awaitable[None]]


class Arrivals(Protocol):
    """An arrival model. It ends with the sessions it is given, once their last has been talked through."""

    @property
    def think_seconds(self) -> float:
        """Mean pause of a user between an answer and the next turn, exponentially spread."""

    async def play(
        self, sessions: Iterator[Session], converse: Converse, pause: Pause, random: Random
    ) -> None:
        """Begin each session at its time. `pause` sleeps, or returns early once the run is over."""


@dataclass(frozen=True, slots=True)
class Open:
    """New sessions by a Poisson process: users come and do not wait for one another.

    Turns within a session still wait for their answer, as a person does.
    """

    sessions_per_second: float
    think_seconds: float = 0.0

    async def play(
        self, sessions: Iterator[Session], converse: Converse, pause: Pause, random: Random
    ) -> None:
        """Begin each session at its time on the clock; a late start does not move the next."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        async with asyncio.TaskGroup() as group:
            for gap in gaps_seconds(self.sessions_per_second, random):
                due += gap
                await pause(due - loop.time())
                session = next(sessions, None)
                if session is None:
                    return
                group.create_task(_talk(converse, session))


@dataclass(frozen=True, slots=True)
class Closed:
    """`concurrency` users, each with one session at a time: a slow fleet is asked less.

    A user thinks before a session as between turns, so that they do not all begin at once.
    """

    concurrency: int
    think_seconds: float = 0.0

    async def play(
        self, sessions: Iterator[Session], converse: Converse, pause: Pause, random: Random
    ) -> None:
        """Let each user take the next session as soon as its last one has ended."""

        async def user(random: Random) -> None:
            while True:
                await pause(think(self.think_seconds, random))
                session = next(sessions, None)
                if session is None:
                    return
                await converse(session)

        async with asyncio.TaskGroup() as group:
            for _ in range(self.concurrency):
                group.create_task(user(Random(random.getrandbits(64))))


def gaps_seconds(rate_per_second: float, random: Random) -> Iterator[float]:
    """The gaps of a Poisson process, without end."""
    while True:
        yield random.expovariate(rate_per_second)


def think(mean_seconds: float, random: Random) -> float:
    """One pause of a user, in seconds."""
    return random.expovariate(1 / mean_seconds) if mean_seconds > 0 else 0.0


async def _talk(converse: Converse, session: Session) -> None:
    await converse(session)
