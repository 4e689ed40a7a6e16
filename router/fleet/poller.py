"""Asks one replica how it is: its state, its digest, or, where it knows neither, its health and models."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import aiohttp
import orjson

from router.chain.chain import ChainIdentity
from router.chain.digest import MAX_DIGEST_BYTES, Digest
from router.config import FleetOptions
from router.fleet.health import Standing
from router.fleet.replica import Replica
from router.wire.report import ReplicaState

log = logging.getLogger("kvring.fleet")

_LARGEST_ANSWER_BYTES = 2 * MAX_DIGEST_BYTES
# How often a replica without /state is asked for its models.
_MODELS_SECONDS = 10.0

Clock = Callable[[], float]


class Poller:
    """Watches one replica until cancelled."""

    def __init__(
        self,
        replica: Replica,
        session: aiohttp.ClientSession,
        options: FleetOptions,
        identity_of: Callable[[str], ChainIdentity],
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """`identity_of` tells the identity of this router's chain for a model.

        `changed` is called where a poll changed the replica's standing or the name it wants.
        """
        self._replica = replica
        self._session = session
        self._options = options
        self._identity_of = identity_of
        self._clock = clock
        self._changed = changed
        self._timeout = aiohttp.ClientTimeout(total=options.probe_timeout_seconds)
        self._digest_due = 0.0
        self._digest_failed = False
        self._models_due = 0.0

    async def run(self) -> None:
        """Poll until cancelled; whatever a replica answers, polling goes on."""
        replica = self._replica
        while True:
            was = replica.health.standing, replica.wanted_name
            try:
                await self.poll()
            except Exception:
                log.exception("polling %s failed", replica.url)
            if (replica.health.standing, replica.wanted_name) != was:
                self._changed()
            await asyncio.sleep(self._options.state_poll_seconds)

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

    async def _ask(self, asked_at: float) -> None:
        status, body = await self._get("/state")
        if status == 404:
            await self._ask_plain_engine()
            return
        replica = self._replica
        if status == 503:
            replica.health.not_ready()
            return
        if status >= 500 or not isinstance(body, dict):
            raise ValueError(f"/state answered {status}")
        state = ReplicaState.from_json(body)
        if replica.epoch != state.epoch:
            self._digest_due = 0.0
        replica.take_state(state)
        self._compare(state)
        now = self._clock()
        replica.load.reported(state.load, covers_until=asked_at, now=now)
        if not state.ready:
            replica.health.not_ready()
            return
        replica.health.probe_passed(now, draining=state.draining)
        if now >= self._digest_due and state.chain == self._identity_of(self._model()):
            self._digest_due = now + self._options.digest_poll_seconds
            await self._fetch_digest(state)

    async def _ask_plain_engine(self) -> None:
        """Another engine: /health tells that it lives, /v1/models what it serves."""
        replica = self._replica
        status, _ = await self._get("/health")
        if status == 503:
            replica.health.not_ready()
            return
        if status >= 500:
            raise ValueError(f"/health answered {status}")
        now = self._clock()
        if now >= self._models_due:
            status, body = await self._get("/v1/models")
            cards = body.get("data") if isinstance(body, dict) else None
            if status != 200 or not isinstance(cards, list):
                raise ValueError(f"/v1/models answered {status}")
            replica.serves(
                tuple(str(card["id"]) for card in cards[:1000] if isinstance(card, dict) and "id" in card)
            )
            self._models_due = now + _MODELS_SECONDS
        if replica.state is not None:
            replica.take_state(None)
        replica.health.probe_passed(now)

    async def _fetch_digest(self, state: ReplicaState) -> None:
        """Fetch the digest. One that cannot be had or read says nothing about the replica's health."""
        asked_at = self._clock()
        try:
            status, body = await self._get("/digest")
            if status != 200:
                return
            digest = Digest.from_json(body)
            age = float(body.get("age_seconds", 0.0))
        except (aiohttp.ClientError, TimeoutError, ValueError, TypeError) as error:
            if not self._digest_failed:
                log.warning("the digest of replica %s cannot be read: %s", self._replica.name, error)
            self._digest_failed = True
            return
        self._digest_failed = False
        if digest.identity != state.chain.fingerprint:
            return
        self._replica.take_digest(digest, asked_at - max(0.0, age))

    def _compare(self, state: ReplicaState) -> None:
        """Say once, and loudly, where a replica's names of blocks cannot be compared with ours."""
        replica = self._replica
        ours = self._identity_of(self._model())
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
            replica.health.probe_failed(self._clock(), self._options.probe_timeout_seconds)
        else:
            replica.health.unreachable()

    async def _get(self, path: str) -> tuple[int, Any]:
        """Return status and JSON body (None where it is none)."""
        url = self._replica.url + path
        async with self._session.get(url, timeout=self._timeout, allow_redirects=False) as response:
            if response.content_type != "application/json":
                return response.status, None
            raw = await response.content.read(_LARGEST_ANSWER_BYTES)
            while not response.content.at_eof() and len(raw) < _LARGEST_ANSWER_BYTES:
                raw += await response.content.read(_LARGEST_ANSWER_BYTES - len(raw))
            return response.status, orjson.loads(raw)
