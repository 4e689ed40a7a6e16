"""Drives a workload against one address with an arrival model, within a number of requests and a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from loadgen.arrivals import Arrivals, think
from loadgen.client import Answer, Client
from loadgen.workloads.session import Session, Workload, source


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What ends a run, whichever comes first; None is no limit of that kind.

    After `duration_seconds` nothing new is asked; what is in flight has `drain_seconds` more, then it is cut
    and counted as unfinished. With `in_flight` sessions at once, a new one is turned away and counted.
    """

    requests: int | None = None
    sessions: int | None = None
    duration_seconds: float = 600.0
    drain_seconds: float = 60.0
    in_flight: int = 10_000


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a run. `index` counts within its session from 0; `sent_seconds` since the run began."""

    session: str
    index: int
    sent_seconds: float
    answer: Answer


@dataclass(frozen=True, slots=True)
class Run:
    """All that happened, turns in the order they ended."""

    turns: tuple[Turn, ...]
    wall_seconds: float
    turned_away: int = 0


OnTurn = Callable[[Turn], None]


async def drive(
    workload: Workload,
    arrivals: Arrivals,
    client: Client,
    limits: RunLimits,
    *,
    seed: int = 0,
    on_turn: OnTurn | None = None,
) -> Run:
    """Run to the limits and return what happened. `on_turn` is told of each answer; a cancel ends all."""
    return await _Drive(client, arrivals, limits, seed, on_turn).run(workload)


class _Drive:
    """One run: what is asked, in flight and done."""

    def __init__(
        self, client: Client, arrivals: Arrivals, limits: RunLimits, seed: int, on_turn: OnTurn | None
    ) -> None:
        self._client = client
        self._arrivals = arrivals
        self._limits = limits
        self._seed = seed
        self._on_turn = on_turn
        self._over = asyncio.Event()
        self._turns: list[Turn] = []
        self._asked = 0
        self._in_flight = 0
        self._turned_away = 0
        self._began = 0.0

    async def run(self, workload: Workload) -> Run:
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        sessions = self._until_over(islice(workload.sessions(), self._limits.sessions))
        random = source(self._seed, "arrivals")
        timer = loop.call_later(self._limits.duration_seconds, self._over.set)
        try:
            async with asyncio.timeout(self._limits.duration_seconds + self._limits.drain_seconds):
                await self._arrivals.play(sessions, self._converse, self._pause, random)
        except TimeoutError:
            # Each request that was cut has noted itself.
            pass
        finally:
            timer.cancel()
        return Run(tuple(self._turns), loop.time() - self._began, self._turned_away)

    def _until_over(self, sessions: Iterator[Session]) -> Iterator[Session]:
        for session in sessions:
            if self._over.is_set():
                return
            yield session

    async def _pause(self, seconds: float) -> None:
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            pass

    async def _converse(self, session: Session) -> None:
        if self._in_flight >= self._limits.in_flight:
            self._turned_away += 1
            return
        self._in_flight += 1
        try:
            await self._talk(session)
        finally:
            self._in_flight -= 1

    async def _talk(self, session: Session) -> None:
        random = source(self._seed, "think", session.name)
        answer: Answer | None = None
        index = 0
        while (body := session.next_body(answer.text if answer else None)) is not None:
            if index:
                await self._pause(think(self._arrivals.think_seconds, random))
            if not self._may_ask():
                return
            sent = asyncio.get_running_loop().time()
            try:
                answer = await self._client.ask(body)
            except asyncio.CancelledError:
                spent = asyncio.get_running_loop().time() - sent
                self._note(session, index, sent, Answer(error="unfinished", total_seconds=spent))
                raise
            self._note(session, index, sent, answer)
            if answer.error is not None:
                # Without its answer, a conversation has no history to go on from.
                return
            index += 1

    def _may_ask(self) -> bool:
        if self._over.is_set():
            return False
        self._asked += 1
        if self._limits.requests is not None and self._asked >= self._limits.requests:
            # This one is the last: users that think wake up and leave.
            self._over.set()
        return True

    def _note(self, session: Session, index: int, sent: float, answer: Answer) -> None:
        turn = Turn(session.name, index, sent - self._began, answer)
        self._turns.append(turn)
        if self._on_turn is not None:
            self._on_turn(turn)
