"""What the followers of one process share: ZMQ's threads, and a fair turn at the event loop."""

from __future__ import annotations

import asyncio
from time import monotonic

import zmq

# Worked at a stretch by all followers together, before requests get their turn.
_STRETCH_SECONDS = 0.001


class Hub:
    """Built within a running event loop; closed after all its followers stopped."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._turn = asyncio.Lock()
        self._until = 0.0

    async def breathe(self) -> None:
        """Let all others go first, where this stretch is over: one follower works at a time."""
        if monotonic() < self._until:
            return
        async with self._turn:
            await asyncio.sleep(0)
            self._until = monotonic() + _STRETCH_SECONDS

    def close(self) -> None:
        """Close what sockets are left, and end ZMQ's threads."""
        self.context.destroy(linger=0)
