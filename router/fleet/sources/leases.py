"""Members by leases: the replicas that say in Redis that they are there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from router.config import LeaseOptions
from router.fleet.members import Member
from router.shared.connection import Unreachable
from router.shared.leases import Leases, ReplicaLease

# Until then a change is seen when the list is read.
_LISTEN_AGAIN_SECONDS = 1.0
_SHORTEST_WAIT_SECONDS = 0.2


@dataclass(slots=True)
class _Held:
    """A lease that was read. It counts until `until`, listed still or not: Redis may have forgotten it."""

    lease: ReplicaLease
    until: float
    listed: bool = True


class LeaseMembers:
    """The holders of leases. Nobody is gone for what Redis forgot, or while it cannot be asked.

    Who is missing from the list stays until its lease, as read last, is over; after an outage, until it had
    its whole time again to renew it. Only who said that it drains is gone at once.
    """

    kind = "leases"

    def __init__(self, options: LeaseOptions, leases: Leases, clock: Callable[[], float] = monotonic) -> None:
        self._options = options
        self._leases = leases
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._hint = asyncio.Event()

    @property
    def up(self) -> bool:
        """Whether it is answered."""
        return self._leases.connection.up

    async def watch(self) -> AsyncIterator[Sequence[Member]]:
        """Yield the members whenever they changed; nothing while Redis cannot be reached."""
        told: Sequence[Member] | None = None
        listening = asyncio.create_task(self._listen())
        try:
            while True:
                with suppress(Unreachable):
                    await self._read()
                    members = self._members()
                    if members != told:
                        told = members
                        yield members
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._wait_seconds()):
                        await self._hint.wait()
                self._hint.clear()
        finally:
            listening.cancel()

    async def _listen(self) -> None:
        while True:
            if self._leases.connection.up:
                async for _ in self._leases.connection.listen(self._leases.channel):
                    self._hint.set()
            await asyncio.sleep(_LISTEN_AGAIN_SECONDS)

    async def _read(self) -> None:
        found = await self._leases.read()
        now = self._clock()
        answered_since = now - self._leases.connection.up_seconds
        for held in self._held.values():
            held.listed = False
            held.until = max(held.until, answered_since + held.lease.seconds)
        for one in found:
            self._held[one.lease.uid] = _Held(one.lease, now + one.remaining_seconds)
        self._held = {
            uid: held
            for uid, held in self._held.items()
            if held.listed or (now < held.until and not held.lease.draining)
        }

    def _wait_seconds(self) -> float:
        """Return how long the list may stand: no longer than the first lease in it that is not renewed."""
        now = self._clock()
        first = min((held.until - now for held in self._held.values()), default=float("inf"))
        return min(self._options.refresh_seconds, max(_SHORTEST_WAIT_SECONDS, first))

    def _members(self) -> Sequence[Member]:
        """Return a member for each address: of two lives of one, the one that is listed, and renewed last."""
        by_url: dict[str, ReplicaLease] = {}
        for held in sorted(self._held.values(), key=lambda one: (one.listed, one.until)):
            by_url[held.lease.url] = held.lease
        return [
            Member(lease.url, lease.name, lease.uid, lease.draining)
            for lease in sorted(by_url.values(), key=lambda one: (one.name, one.url))
        ]
