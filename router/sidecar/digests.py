"""The digest as it is served: built for many routers at once, and only when there is something new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from router.chain.digest import Digest
from router.events.follower import Follower

# However many routers ask, and however busy the engine is, no more than four are built a second.
_LEAST_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Served:
    """A digest, its tag, which differs from that of every other one, and how old it is."""

    digest: Digest
    tag: str
    age_seconds: float


class DigestDesk:
    """Keeps the last digest of one follower."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._digest: Digest | None = None
        self._version = -1
        self._made_at = 0.0

    async def serve(self, follower: Follower, identity: str) -> Served | None:
        """Return the digest of what `follower` knows; None where that is not to be trusted."""
        async with self._lock:
            if not follower.trusted:
                return None
            now = self._clock()
            kept = self._digest
            same_life = kept is not None and (kept.identity, kept.epoch) == (identity, follower.epoch)
            if kept is not None and same_life:
                if follower.names_version == self._version:
                    return self._served(kept, 0.0)
                if now - self._made_at < _LEAST_SECONDS:
                    return self._served(kept, now - self._made_at)
            version = follower.names_version
            digest = await follower.digest(identity, follower.epoch)
            if digest is not None:
                self._digest, self._version, self._made_at = digest, version, now
            return None if digest is None else self._served(digest, 0.0)

    def _served(self, digest: Digest, age_seconds: float) -> Served:
        return Served(digest, f"{digest.epoch}-{self._version}", age_seconds)
