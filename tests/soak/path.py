"""A path to a replica, through a proxy that notes each request and does to it what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from tests.soak.faults import NO_FAULT, Fault
from tests.soak.front import Front

_INFERENCE = ("/v1/chat/completions", "/v1/completions")


@dataclass(slots=True, eq=False)
class Attempt:
    """One request on one replica, as the path to it saw it. Times are the loop's."""

    request_id: str
    replica: str
    target: str
    # Whether its connection had carried another before.
    reused: bool
    began_at: float
    fault: Fault = NO_FAULT
    # Whether something befell the path or the replica meanwhile.
    disturbed: bool = False
    # Whether the path was frozen meanwhile, so that its end was seen late.
    unseen: bool = False
    # Whether the replica was sent all of it.
    started: bool = False
    # What the router was told, and how many bytes of that.
    status: int = 0
    told_bytes: int = 0
    # Whether it was told all.
    answered: bool = False
    ended_at: float = inf

    @property
    def resumed(self) -> bool:
        """Whether it goes on with a stream that began elsewhere."""
        return self.target.startswith("/resume/")


class Path:
    """Listens in front of a replica. `close` ends it."""

    def __init__(
        self, name: str, port: int, replica_port: int, draw: Callable[[], Fault], attempts: list[Attempt]
    ) -> None:
        """What comes by is added to `attempts`."""
        self.name = name
        self.port = port
        self.replica_port = replica_port
        self.frozen = False
        self.fronts: set[Front] = set()
        # How many requests were on it at once, at most.
        self.most = 0
        self._attempts = attempts
        self._draw = draw
        self._server: asyncio.Server | None = None
        self._troubled = False

    @property
    def open(self) -> bool:
        """Whether it accepts."""
        return self._server is not None

    async def listen(self) -> None:
        """Accept."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Front(self), "127.0.0.1", self.port)

    def refuse(self) -> None:
        """Accept no more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """End it, and all connections."""
        self.refuse()
        self.cut()
        # Transports tell of their end in the next turns of the loop.
        for _ in range(3):
            await asyncio.sleep(0)

    def begin(self, request_id: str, target: str, reused: bool) -> Attempt | None:
        """Note a request; None for polls and the like, which share the path's troubles alone."""
        if target.removeprefix("/resume") not in _INFERENCE:
            return None
        now = asyncio.get_running_loop().time()
        attempt = Attempt(request_id, self.name, target, reused, now, self._draw())
        attempt.disturbed, attempt.unseen = self._troubled, self.frozen
        self._attempts.append(attempt)
        self.most = max(self.most, 1 + sum(front.attempt is not None for front in self.fronts))
        return attempt

    def trouble(self, begins: bool) -> None:
        """Note that something befalls the path or its replica, or that it is over."""
        self._troubled = begins
        for front in self.fronts:
            if begins and front.attempt is not None:
                front.attempt.disturbed = True

    def cut(self) -> None:
        """Reset all connections."""
        for front in list(self.fronts):
            front.abort()

    def cut_idle(self) -> None:
        """Reset those that carry nothing."""
        for front in list(self.fronts):
            if front.idle:
                front.abort()

    def freeze(self, frozen: bool) -> None:
        """Let nothing through in either direction, or go on."""
        self.frozen = frozen
        for front in self.fronts:
            front.freeze(frozen)
            if front.attempt is not None:
                front.attempt.unseen = True
