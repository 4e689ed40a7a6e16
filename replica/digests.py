"""The digest of this replica's cache, rebuilt only when there is something new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from replica.engine import Snapshot
from router.chain.digest import Digest

# Below so many names a digest is built at once; above, away from the event loop.
_INLINE_NAMES = 2_000


class DigestKeeper:
    """Keeps the last digest. `epoch_of` turns a snapshot's epoch into the one that the wire carries."""

    def __init__(self, identity: str, epoch_of: Callable[[int], str], executor: Executor) -> None:
        self._identity = identity
        self._epoch_of = epoch_of
        self._executor = executor
        self._lock = asyncio.Lock()
        self._built: tuple[int, int] | None = None
        self._digest = Digest.of((), identity, epoch_of(0))

    async def digest(self, snapshot: Snapshot) -> Digest:
        """Return the digest of `snapshot`'s names."""
        async with self._lock:
            wanted = (snapshot.epoch, snapshot.names_version)
            if wanted != self._built:
                self._digest = await self._build(snapshot)
                self._built = wanted
            return self._digest

    async def _build(self, snapshot: Snapshot) -> Digest:
        arguments = (snapshot.names, self._identity, self._epoch_of(snapshot.epoch))
        if len(snapshot.names) <= _INLINE_NAMES:
            return Digest.of(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, Digest.of, *arguments)
