"""Asks a replica that runs an engine which is not ours: whether it is well, what it is, and how loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from urllib.parse import urlsplit

from router.chain.chain import ChainIdentity
from router.chain.namers import Namers
from router.config import FleetOptions
from router.engines.detect import detect, engine_of
from router.engines.engine import Engine
from router.fleet.digest_reader import DigestReader
from router.fleet.fetch import Fetcher
from router.fleet.following import Following
from router.fleet.health import Standing
from router.fleet.replica import Replica

log = logging.getLogger("kvring.fleet")

# How often it is asked what it is.
_FACTS_SECONDS = 10.0


class OtherEngine:
    """Asks through the adapter of its engine. `options` may be replaced while it runs."""

    def __init__(
        self,
        replica: Replica,
        fetcher: Fetcher,
        digests: DigestReader,
        following: Following,
        options: FleetOptions,
        namers: Namers,
        clock: Callable[[], float],
    ) -> None:
        self.options = options
        self._replica = replica
        self._fetcher = fetcher
        self._digests = digests
        self._following = following
        self._namers = namers
        self._clock = clock
        self._engine: Engine | None = None
        self._facts_due = 0.0
        self._digest_due = 0.0
        self._complaints: set[str] = set()

    def forget(self) -> None:
        """Find out anew what it is: another program may come up at its address."""
        self._engine = None
        self._facts_due = 0.0

    async def ask(self) -> None:
        """Ask an engine that is not ours: whether it is well, what it is, and how loaded."""
        replica, kind, now = self._replica, self.options.engine, self._clock()
        engine = self._engine or engine_of("plain" if kind == "auto" else kind)
        due = now >= self._facts_due or replica.facts is None
        if due or not engine.health_computes:
            try:
                ready = await engine.ready(self._fetcher.get)
            except TimeoutError:
                if not engine.health_computes:
                    raise
                # Where a probe computes a token, a slow one tells of load alone.
                ready = replica.health.standing is Standing.READY
            if not ready:
                replica.health.not_ready()
                return
        if self._engine is None and kind == "auto":
            # Only one that is ready tells what it is.
            engine = await detect(self._fetcher.get)
        self._engine = engine
        if due:
            await self._ask_facts(engine)
        if replica.facts is None:
            return
        try:
            load = await engine.load(self._fetcher.get)
        except ValueError as error:
            load = None
            self._complain("load", error)
        now = self._clock()
        if load is not None:
            if load.process and load.process != replica.facts.process:
                # Another process: where it publishes, and what it serves, may be new too.
                self._facts_due = 0.0
            replica.take_engine_load(load, now)
        self._replica.passed(now, self.options.warming_seconds)
        if now >= self._digest_due:
            self._digest_due = now + self.options.digest_poll_seconds
            await self._engine_digest()

    async def _ask_facts(self, engine: Engine) -> None:
        """Ask what it is. One that cannot say, but is well, is asked again later."""
        replica = self._replica
        try:
            facts = await engine.facts(
                self._fetcher.get, urlsplit(replica.url).hostname or "", self.options.events
            )
        except ValueError as error:
            if replica.facts is None:
                raise
            self._complain("description", error)
            return
        self._facts_due = self._clock() + _FACTS_SECONDS
        self._complaints.clear()
        replica.take_facts(facts)
        if self.options.events.source == "replica":
            await self._following.take(facts)

    def _complain(self, what: str, error: Exception) -> None:
        """Say once what is wrong with an answer that says nothing about health."""
        if what not in self._complaints:
            self._complaints.add(what)
            log.warning("the %s of replica %s cannot be read: %s", what, self._replica.name, error)

    async def _engine_digest(self) -> None:
        events = self.options.events
        if events.source == "replica":
            await self._following.publish()
        elif events.source == "sidecar" and (identity := self._identity()) is not None:
            parts = urlsplit(self._replica.url)
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
            await self._digests.read(f"http://{host}:{events.sidecar_port}", identity.fingerprint)

    def _identity(self) -> ChainIdentity | None:
        """Return the identity of its chain, as a sidecar must have it; None where there is no tokenizer."""
        namer = self._namers.by_tokens(self._replica.model)
        return namer.identity if namer else None
