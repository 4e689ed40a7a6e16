"""A source of members that lists what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from router.fleet.members import Member


class Listed:
    """Lists `listed`, and again when that changes; None is no answer."""

    kind = "script"

    def __init__(self, *listed: Member) -> None:
        self.up = True
        self.listed: Sequence[Member] | None = listed

    async def watch(self) -> AsyncIterator[Sequence[Member]]:
        told: Sequence[Member] | None = None
        while True:
            if self.listed is not None and self.listed != told:
                told = self.listed
                yield told
            await asyncio.sleep(0.02)
