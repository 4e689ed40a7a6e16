"""Members by Kubernetes: the pods in the EndpointSlices of a Service, listed, then watched."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing

import aiohttp

from router.config import KubernetesOptions
from router.fleet.members import Member
from router.fleet.sources.kubernetes_api import ApiServer, ApiServerError, ExpiredError
from router.fleet.sources.outage import Outage
from router.fleet.sources.slices import Slices

log = logging.getLogger("kvring.fleet")

# A watch that lived so long works; one that ends sooner, and told nothing, would be begun in a tight loop.
_SETTLED_SECONDS = 1.0


class EndpointSliceMembers:
    """Follows the pods of a Service by the API server; needs get, list and watch of its EndpointSlices.

    A watch that breaks is taken up where it was. Where that is no longer possible, or fails twice, all is
    listed anew, and what is not in the list is gone. ValueError where there is nobody to ask.
    """

    kind = "kubernetes"

    def __init__(self, options: KubernetesOptions, environment: Mapping[str, str] = os.environ) -> None:
        self._api = ApiServer(options, environment)
        self._subject = f"Service {options.service} in namespace {self._api.namespace}"
        self._slices = Slices(options.port)
        self._outage = Outage(f"Kubernetes API server, {self._subject}")
        # Whether the last watch worked, and whether the version to watch from is that of a list.
        self._healthy = False
        self._fresh = False
        self._faults: set[str] = set()

    @property
    def up(self) -> bool:
        """Whether it is answered."""
        return not self._outage.lasts

    async def watch(self) -> AsyncIterator[Sequence[Member]]:
        """Yield the members once they are known, and after each change."""
        told: tuple[Member, ...] | None = None
        while True:
            wait = 0.0
            try:
                # A session for each try: after a failure neither its connections nor its CA are relied on.
                async with self._api.session() as session, aclosing(self._follow(session)) as changes:
                    async for members in changes:
                        if members != told:
                            told = members
                            yield members
            except ExpiredError:
                self._slices.version = ""
                # Versions grow old while a watch is broken; one that was just listed does not.
                if self._fresh:
                    wait = self._lost("it forgets versions as soon as it has told them")
            except ApiServerError as error:
                wait = max(error.wait_seconds, self._lost(error.reason, error.detail))
            except (aiohttp.ClientError, OSError, ValueError) as error:
                wait = self._lost(f"no answer, {type(error).__name__}", str(error))
            await asyncio.sleep(wait)

    async def _follow(self, session: aiohttp.ClientSession) -> AsyncGenerator[tuple[Member, ...], None]:
        """List where need be, then watch; ends where a watch has ended as it should."""
        if not self._slices.version:
            self._slices.replace(*await self._api.list(session))
            self._fresh = True
            yield self._members()
        worked = False

        def works() -> None:
            nonlocal worked
            worked = self._healthy = True
            self._fresh = False
            self._outage.ended()

        async with self._api.watch(session, self._slices.version) as events:
            settled = asyncio.get_running_loop().call_later(_SETTLED_SECONDS, works)
            try:
                async for kind, thing in events:
                    works()
                    if self._slices.apply(kind, thing):
                        yield self._members()
            finally:
                settled.cancel()
        if not worked:
            raise ApiServerError("it ends watches as soon as they begin")

    def _lost(self, reason: str, detail: str = "") -> float:
        """Note a failure; return the seconds to wait."""
        was_healthy, self._healthy = self._healthy, False
        if not was_healthy:
            # Taking the watch up again did not help: begin with a list.
            self._slices.version = ""
        # Watches break as servers restart; it matters where the next one does too.
        return self._outage.failed(reason, detail, quiet=was_healthy)

    def _members(self) -> tuple[Member, ...]:
        faults = self._slices.faults()
        for fault in sorted(faults - self._faults):
            log.warning("%s: %s", self._subject, fault)
        self._faults = faults
        return self._slices.members()
