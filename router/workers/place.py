"""A worker's place among those that serve one port, and how it speaks for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from router.workers.link import Link
from router.workers.message import About


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Which of how many a worker is (from 1), and its link to the supervisor.

    What is asked here is answered for all workers; ApiError (503) where the supervisor does not answer.
    """

    number: int
    count: int
    link: Link

    async def metrics(self) -> bytes:
        """Return the exposition text of all workers' metrics added up."""
        return await self.link.ask(About.METRICS)

    async def families(self) -> bytes:
        """Return the same as `router.observe.merge.registry_of` reads it."""
        return await self.link.ask(About.FAMILIES)

    async def explained(self, request_id: str) -> bytes:
        """Return another worker's explanation of a request as JSON; empty where none knows it."""
        return await self.link.ask(About.EXPLANATION, request_id.encode())
