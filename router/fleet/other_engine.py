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
        polls: Fetcher,
        patient: Fetcher,
        digests: DigestReader,
        following: Following,
        options: FleetOptions,
        namers: Namers,
        clock: Callable[[], float],
    ) -> None:
        """`polls` tell in short time whether it lives; `patient` waits for what takes longer."""
        self.options = options
        self._replica = replica
        self._polls = polls
        self._patient = patient
        self._digests = digests
        self._following = following
        self._namers = namers
        self._clock = clock
        self._engine: Engine | None = None
        self._facts_due = 0.0
        self._ready_due = 0.0
        self._digest_due = 0.0
        self._tells_load = False
        self._complaints: set[str] = set()

    @property
    def known(self) -> bool:
        """Whether it is known what it is."""
        return self._engine is not None and self._replica.facts is not None

    @property
    def due(self) -> bool:
        """Whether it should be asked again what it is."""
        return self._clock() >= self._facts_due

    def forget(self) -> None:
        """Find out anew what it is: another program may come up at its address."""
        self._engine = None
        self._facts_due = self._ready_due = 0.0

    async def ask(self) -> None:
        """Ask, and note what was learned; errors as of the fetcher."""
        replica, kind = self._replica, self.options.engine
        engine = self._engine or engine_of("plain" if kind == "auto" else kind)
        if not await self._ready(engine):
            replica.health.not_ready()
            return
        if self._engine is None and kind == "auto":
            # Only one that is ready tells what it is.
            engine = await detect(self._patient.get)
        self._engine = engine
        if replica.facts is None:
            await self._ask_facts(engine)
        if replica.facts is None:
            return
        # First what is quick: one that is hung is not waited for as long as for its description.
        await self._ask_load(engine)
        if self.due:
            await self._ask_facts(engine)
        now = self._clock()
        replica.passed(now, self.options.warming_seconds)
        if now >= self._digest_due:
            self._digest_due = now + self.options.digest_poll_seconds
            await self._ask_digest()

    async def _ready(self, engine: Engine) -> bool:
        """Ask whether it is well; while it tells its load that is asked more seldom, or with the facts."""
        now, standing = self._clock(), self._replica.health.standing
        if standing is Standing.READY and now < (
            self._facts_due if engine.health_computes else self._ready_due
        ):
            return True
        self._ready_due = now + (self.options.idle_poll_seconds if self._tells_load else 0.0)
        try:
            return await engine.ready(self._polls.get)
        except TimeoutError:
            if not engine.health_computes:
                raise
            # Where a probe computes a token, a slow one tells of load alone.
            return standing is Standing.READY

    async def _ask_load(self, engine: Engine) -> None:
        replica = self._replica
        try:
            load = await engine.load(self._polls.get)
        except ValueError as error:
            self._tells_load = False
            self._complain("load", error)
            if replica.engine_load is not None:
                replica.forget_load(self._clock())
            return
        self._tells_load = load is not None
        self._complaints.discard("load")
        if load is None or replica.facts is None:
            return
        if load.process and load.process != replica.facts.process:
            # Another process: where it publishes and what it serves may be new too.
            self._facts_due = 0.0
        replica.take_engine_load(load, self._clock())

    async def _ask_facts(self, engine: Engine) -> None:
        """Ask what it is. One that cannot say, but is well, is asked again later."""
        replica = self._replica
        try:
            facts = await engine.facts(
                self._patient.get, urlsplit(replica.url).hostname or "", self.options.events
            )
        except ValueError as error:
            if replica.facts is None:
                raise
            self._complain("description", error)
            return
        finally:
            self._facts_due = self._clock() + _FACTS_SECONDS
        self._complaints.discard("description")
        replica.take_facts(facts)
        if self.options.events.source == "replica":
            await self._following.take(facts)

    def _complain(self, what: str, error: Exception) -> None:
        """Say once what is wrong with an answer that says nothing about health."""
        if what not in self._complaints:
            self._complaints.add(what)
            log.warning("the %s of replica %s cannot be read: %s", what, self._replica.name, error)

    async def _ask_digest(self) -> None:
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
