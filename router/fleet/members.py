"""Members: what a source of discovery tells of a replica, and the one interface of all sources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from router.config import ReplicaAddress


@dataclass(frozen=True, slots=True)
class Member:
    """One replica as a source knows it.

    `url` is where it serves, without a slash at its end. `name` is stable over restarts, None where the
    source knows none. `uid` names one life of it, such as a pod's, empty where unknown: the same url under
    another uid is another replica. `draining` says that it ends what it runs and takes nothing new.
    """

    url: str
    name: str | None = None
    uid: str = ""
    draining: bool = False


class MemberSource(Protocol):
    """Follows the members of a fleet. `kind` is its name in logs and metrics."""

    kind: str

    @property
    def up(self) -> bool:
        """Whether it is answered; True before it was asked."""

    def watch(self) -> AsyncIterator[Sequence[Member]]:
        """Yield all members there are, first as soon as they are known, then after each change, for ever.

        A source that cannot be reached retries with backoff and yields nothing meanwhile, so that the last
        list stands; it logs once where that begins and once where it ends. Only cancellation ends it.
        """


class StaticMembers:
    """The members named in the configuration."""

    kind = "static"
    up = True

    def __init__(self, addresses: Sequence[ReplicaAddress]) -> None:
        self._addresses = addresses
        self._replaced = asyncio.Event()

    def replace(self, addresses: Sequence[ReplicaAddress]) -> None:
        """Take other members: the configuration was loaded anew."""
        if addresses != self._addresses:
            self._addresses = addresses
            self._replaced.set()

    async def watch(self) -> AsyncIterator[Sequence[Member]]:
        """Yield the configured members, and again when they are replaced."""
        while True:
            yield [Member(address.url, address.name) for address in self._addresses]
            await self._replaced.wait()
            self._replaced.clear()
