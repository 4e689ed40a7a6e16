"""The lease that a replica holds in Redis, so that routers find it; serving never depends on it."""

from __future__ import annotations

import logging
from socket import gethostname

from replica.lease_options import LeaseOptions
from router.shared.connection import Connection
from router.shared.leases import Leases, ReplicaLease
from router.shared.repeated import Repeated

_log = logging.getLogger(__name__)

_WILDCARDS = ("", "0.0.0.0", "::")
# A third of the lease may pass before it is renewed, as much again before a Redis that is back is asked.
_PARTS = 3
_LONGEST_TIMEOUT_SECONDS = 0.5


class LeaseKeeper:
    """Holds a lease from `start` until `stop`: renews it every third of its time."""

    def __init__(self, options: LeaseOptions, name: str, uid: str) -> None:
        """ValueError where `options.redis` is no address of a Redis."""
        self._options = options
        self._name = name
        self._uid = uid
        self._url = ""
        self._draining = False
        self._full = False
        part = options.seconds / _PARTS
        self._connection = Connection(options.redis, min(part, _LONGEST_TIMEOUT_SECONDS), part)
        self._leases = Leases(self._connection, options.group)
        self._keeping = Repeated("renewing the lease", self._keep, part)

    def start(self, host: str, port: int) -> None:
        """Begin to hold the lease; `host` and `port` are where the replica listens."""
        if host in _WILDCARDS:
            host = gethostname()
        self._url = self._options.advertise_url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._keeping.start()

    def drain(self) -> None:
        """Tell from now on that the replica takes nothing new."""
        self._draining = True
        self._keeping.hurry()

    async def stop(self) -> None:
        """Give the lease up, if Redis can be reached; returns soon in any case."""
        await self._keeping.stop(self._drop)
        await self._connection.close()

    async def _keep(self) -> None:
        self._note(await self._leases.keep(self._lease()))

    async def _drop(self) -> None:
        await self._leases.drop(self._lease())

    def _lease(self) -> ReplicaLease:
        return ReplicaLease(self._name, self._url, self._uid, self._options.seconds, self._draining)

    def _note(self, answer: str) -> None:
        full = answer == "full"
        if full and not self._full:
            _log.warning(
                "the group %s has no room for another replica: no router finds it", self._options.group
            )
        self._full = full
