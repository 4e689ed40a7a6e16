"""Follows a source in the background, and waits for what it yields."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from router.fleet.members import Member, MemberSource


class Followed:
    """What a source has yielded so far."""

    def __init__(self) -> None:
        self.lists: list[Sequence[Member]] = []
        self._news = asyncio.Condition()

    @property
    def members(self) -> Sequence[Member]:
        """The last list."""
        return self.lists[-1]

    @property
    def urls(self) -> list[str]:
        """The urls of the last list."""
        return [member.url for member in self.members]

    async def take(self, source: MemberSource) -> None:
        """Follow `source` until cancelled."""
        async for members in source.watch():
            async with self._news:
                self.lists.append(members)
                self._news.notify_all()

    async def until(self, fits: Callable[[Sequence[Member]], bool], seconds: float = 10) -> Sequence[Member]:
        """Wait for a list that fits, and return it."""
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(lambda: bool(self.lists) and fits(self.lists[-1]))
        return self.members

    async def until_urls(self, *urls: str) -> Sequence[Member]:
        """Wait for exactly these urls."""
        return await self.until(lambda members: {member.url for member in members} == set(urls))


async def until(true: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until something outside the source is so."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - the other side has no event to wait for
            await asyncio.sleep(0.01)


@asynccontextmanager
async def following(source: MemberSource) -> AsyncIterator[Followed]:
    """Follow a source for the length of a test; what it raises is raised here."""
    followed = Followed()
    task = asyncio.create_task(followed.take(source))
    try:
        yield followed
    finally:
        task.cancel()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        assert isinstance(outcome, asyncio.CancelledError), outcome
