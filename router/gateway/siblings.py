"""Siblings: what a worker asks of all workers that serve its port, itself included."""

from __future__ import annotations

from typing import Protocol


class Siblings(Protocol):
    """Answers for all of them; ApiError (503) where that cannot be had."""

    @property
    def number(self) -> int:
        """Which of them this worker is, from 1."""

    @property
    def count(self) -> int:
        """How many they are."""

    async def metrics(self) -> bytes:
        """Return the exposition text of their metrics added up."""

    async def families(self) -> bytes:
        """Return the same as `router.observe.merge.registry_of` reads it."""

    async def explained(self, request_id: str) -> bytes:
        """Return another's explanation of a request as JSON; empty where none knows it."""
