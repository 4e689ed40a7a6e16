"""Reads the digests of one replica, from itself or from the sidecar beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import aiohttp

from router.chain.digest import Digest
from router.fleet.fetch import Fetcher, json_object
from router.fleet.replica import Replica
from router.wire.report import DIGEST_AGE_HEADER

log = logging.getLogger("kvring.fleet")


class DigestReader:
    """Asks for a digest, and by its tag whether it has changed: most have not."""

    def __init__(self, replica: Replica, fetcher: Fetcher, clock: Callable[[], float]) -> None:
        self._replica = replica
        self._fetcher = fetcher
        self._clock = clock
        self._failed = False
        self._tag = ""

    def forget(self) -> None:
        """Ask for the whole next time."""
        self._tag = ""

    async def read(self, base: str, identity: str) -> None:
        """Read the digest at `base`, of a chain of this identity, and let the replica have it.

        One that cannot be had or read says nothing about the replica's health.
        """
        replica = self._replica
        asked_at = self._clock()
        try:
            known = {"If-None-Match": self._tag} if self._tag and replica.digest is not None else {}
            status, headers, raw = await self._fetcher.fetch(f"{base}/digest", known)
            if status == 304:
                age = float(headers.get(DIGEST_AGE_HEADER, "0"))
                replica.digest_still_true(asked_at - max(0.0, age))
                return
            if status != 200:
                return
            body = json_object(raw)
            digest = Digest.from_json(body)
            age = float(body.get("age_seconds", 0.0))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, TypeError) as error:
            if not self._failed:
                reason = str(error) or type(error).__name__
                log.warning("the digest of replica %s cannot be read: %s", replica.name, reason)
            self._failed = True
            return
        self._failed = False
        if digest.identity != identity:
            return
        replica.take_digest(digest, asked_at - max(0.0, age))
        self._tag = headers.get("ETag", "") if replica.digest is digest else ""
