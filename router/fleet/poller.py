"""Asks one replica how it is: what it is, its load, and its digest; more seldom where its answers tell."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from router.chain.chain import ChainIdentity
from router.chain.digest import Digest
from router.chain.namers import Namers
from router.config import FleetOptions
from router.engines.detect import detect, engine_of
from router.engines.engine import Answer, Engine
from router.events.counts import EventCounts
from router.events.hub import Hub
from router.fleet.following import Following
from router.fleet.health import Standing
from router.fleet.replica import Replica
from router.wire.report import ReplicaState

log = logging.getLogger("kvring.fleet")

# Pages of metrics are the longest.
_LARGEST_ANSWER_BYTES = 4 * 1024 * 1024
# How often an engine that is not ours is asked what it is.
_FACTS_SECONDS = 10.0
# Polls of many replicas are spread by so much, so that they do not come in beats.
_JITTER = 0.1
_DIGEST_AGE_HEADER = "x-kvring-digest-age"

Clock = Callable[[], float]


class Poller:
    """Watches one replica until cancelled. `options` may be replaced while it runs."""

    def __init__(
        self,
        replica: Replica,
        session: aiohttp.ClientSession,
        options: FleetOptions,
        namers: Namers,
        clock: Clock,
        changed: Callable[[], None],
        fleet_size: Callable[[], int],
        hub: Hub | None = None,
    ) -> None:
        """`namers` tell how this router names blocks, by model.

        `changed` is called where a poll changed the replica's standing or the name it wants; `fleet_size`
        counts those who share this router's polls, and `hub` is what followers of KV events share.
        """
        self.options = options
        self._replica = replica
        self._session = session
        self._namers = namers
        self._clock = clock
        self._changed = changed
        self._fleet_size = fleet_size
        self._engine: Engine | None = None
        self._following = Following(replica, namers, options.events, clock, hub)
        self._facts_due = 0.0
        self._digest_due = 0.0
        self._digest_failed = False
        self._digest_tag = ""
        self._complaints: set[str] = set()

    @property
    def event_counts(self) -> EventCounts | None:
        """What came of following the replica's KV events; None where they are not followed."""
        return self._following.counts

    async def run(self) -> None:
        """Poll until cancelled; whatever a replica answers, polling goes on."""
        replica = self._replica
        try:
            while True:
                was = replica.health.standing, replica.wanted_name
                asked_at = self._clock()
                try:
                    await self.poll()
                except Exception:
                    log.exception("polling %s failed", replica.url)
                if (replica.health.standing, replica.wanted_name) != was:
                    self._changed()
                await self._pause(asked_at)
        finally:
            await self._following.stop()

    async def poll(self) -> None:
        """Ask once, and note what was learned."""
        replica = self._replica
        before = replica.health.standing
        asked_at = self._clock()
        try:
            await self._ask(asked_at)
        except (aiohttp.ClientConnectorError, ConnectionResetError) as error:
            self._note_failure(error, reachable=False)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._note_failure(error, reachable=True)
        after = replica.health.standing
        if after is not before:
            log.info("replica %s is %s", replica.name or replica.url, after.value)

    def due_at(self, asked_at: float) -> float:
        """Return when to ask again: after the interval without news, at the latest after a longer one.

        Who tells its load with its answers need not be asked for it, only who it is and what it holds.
        """
        replica, options = self._replica, self.options
        share = self._fleet_size() / options.polls_per_second
        interval = max(options.state_poll_seconds, share)
        longest = max(interval, options.idle_poll_seconds)
        if replica.health.standing is not Standing.READY:
            return asked_at + interval
        if replica.idle and share > options.state_poll_seconds:
            # Polls are short: those that do nothing leave theirs to the others.
            return asked_at + longest
        return min(max(asked_at, replica.load.heard_at) + interval, asked_at + longest)

    async def _pause(self, asked_at: float) -> None:
        """Wait until it should be asked again; answers may put that off meanwhile."""
        late = random.uniform(1 - _JITTER, 1 + _JITTER)
        while (left := asked_at + (self.due_at(asked_at) - asked_at) * late - self._clock()) > 0:  # noqa: ASYNC110 - time passes
            await asyncio.sleep(left)

    async def _ask(self, asked_at: float) -> None:
        replica = self._replica
        if self.options.engine not in ("auto", "kvring"):
            await self._ask_engine()
            return
        answer = await self._get("/state")
        if answer.status in (404, 405) and self.options.engine == "auto":
            await self._ask_engine()
            return
        if answer.status == 503:
            replica.health.not_ready()
            return
        if answer.status != 200:
            raise ValueError(f"/state answered {answer.status}")
        state = ReplicaState.from_json(_json(answer.body))
        if replica.epoch != state.epoch:
            self._digest_due, self._digest_tag = 0.0, ""
        replica.take_state(state)
        self._compare(state)
        now = self._clock()
        replica.load.reported(state.load, covers_until=asked_at, now=now)
        if not state.ready:
            replica.health.not_ready()
            return
        self._passed(now, draining=state.draining)
        if now >= self._digest_due and state.chain == self._namers.identity_of(self._model()):
            self._digest_due = now + self.options.digest_poll_seconds
            await self._fetch_digest(replica.url, state.chain.fingerprint)

    async def _ask_engine(self) -> None:
        """Ask an engine that is not ours: whether it is well, what it is, and how loaded."""
        replica, kind, now = self._replica, self.options.engine, self._clock()
        engine = self._engine or engine_of("plain" if kind == "auto" else kind)
        due = now >= self._facts_due or replica.facts is None
        if due or not engine.health_computes:
            try:
                ready = await engine.ready(self._get)
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
            engine = await detect(self._get)
        self._engine = engine
        if due:
            await self._ask_facts(engine)
        if replica.facts is None:
            return
        try:
            load = await engine.load(self._get)
        except ValueError as error:
            load = None
            self._complain("load", error)
        now = self._clock()
        if load is not None:
            replica.take_engine_load(load, now)
        self._passed(now)
        if now >= self._digest_due:
            self._digest_due = now + self.options.digest_poll_seconds
            await self._engine_digest()

    async def _ask_facts(self, engine: Engine) -> None:
        """Ask what it is. One that cannot say, but is well, is asked again later."""
        replica = self._replica
        try:
            facts = await engine.facts(self._get, urlsplit(replica.url).hostname or "", self.options.events)
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
        elif events.source == "sidecar" and (identity := self._token_identity()) is not None:
            parts = urlsplit(self._replica.url)
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
            await self._fetch_digest(f"http://{host}:{events.sidecar_port}", identity.fingerprint)

    def _token_identity(self) -> ChainIdentity | None:
        namer = self._namers.by_tokens(self._model())
        return namer.identity if namer else None

    def _passed(self, now: float, draining: bool = False) -> None:
        replica = self._replica
        replica.health.probe_passed(now, draining=draining)
        if replica.health.standing is Standing.READY:
            replica.warms(now, self.options.warming_seconds)

    async def _fetch_digest(self, base: str, identity: str) -> None:
        """Fetch the digest. One that cannot be had or read says nothing about the replica's health."""
        replica = self._replica
        asked_at = self._clock()
        try:
            known = {"If-None-Match": self._digest_tag} if self._digest_tag else {}
            status, headers, raw = await self._fetch(f"{base}/digest", known)
            if status == 304:
                age = float(headers.get(_DIGEST_AGE_HEADER, "0"))
                replica.digest_still_true(asked_at - max(0.0, age))
                return
            if status != 200:
                return
            body = _json(raw)
            digest = Digest.from_json(body)
            age = float(body.get("age_seconds", 0.0))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, TypeError) as error:
            if not self._digest_failed:
                reason = str(error) or type(error).__name__
                log.warning("the digest of replica %s cannot be read: %s", replica.name, reason)
            self._digest_failed = True
            return
        self._digest_failed = False
        if digest.identity != identity:
            return
        replica.take_digest(digest, asked_at - max(0.0, age))
        self._digest_tag = headers.get("ETag", "") if replica.digest is digest else ""

    def _compare(self, state: ReplicaState) -> None:
        """Say once, and loudly, where a replica's names of blocks cannot be compared with ours."""
        replica = self._replica
        ours = self._namers.identity_of(self._model())
        mismatch = ours != state.chain
        if mismatch and not replica.mismatch:
            fields = [
                f"{name}: {getattr(state.chain, name)!r} there, {getattr(ours, name)!r} here"
                for name in ChainIdentity.__slots__
                if getattr(state.chain, name) != getattr(ours, name)
            ]
            log.warning(
                "replica %s names blocks otherwise than this router (%s): its digests are not used",
                replica.name,
                "; ".join(fields),
            )
        replica.mismatch = mismatch

    def _model(self) -> str:
        return self._replica.models[0] if self._replica.models else ""

    def _note_failure(self, error: Exception, reachable: bool) -> None:
        replica = self._replica
        if replica.health.standing is Standing.READY:
            log.warning("probe of replica %s failed: %s", replica.name, str(error) or type(error).__name__)
        if reachable:
            replica.health.probe_failed(self._clock(), self.options.probe_timeout_seconds)
        else:
            replica.health.unreachable()
            # Another program may come up at this address.
            self._engine = None
            replica.lost_touch()

    async def _get(self, path: str) -> Answer:
        """Return the replica's answer."""
        status, headers, body = await self._fetch(self._replica.url + path, {})
        return Answer(status, headers.get("Content-Type", "").partition(";")[0].strip().lower(), body)

    async def _fetch(self, url: str, headers: dict[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body, which is cut where nobody could want more."""
        timeout = aiohttp.ClientTimeout(total=self.options.probe_timeout_seconds)
        async with self._session.get(
            url, timeout=timeout, allow_redirects=False, headers=headers
        ) as response:
            body = bytearray()
            while len(body) < _LARGEST_ANSWER_BYTES and (
                chunk := await response.content.read(_LARGEST_ANSWER_BYTES - len(body))
            ):
                body += chunk
            return response.status, response.headers, bytes(body)


def _json(raw: bytes) -> dict[str, Any]:
    body = orjson.loads(raw)
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    return body
