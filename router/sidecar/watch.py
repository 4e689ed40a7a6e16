"""The watch over the engine in this pod: what it serves, and a follower of its events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import aiohttp

from router.chain.namers import Namers
from router.config import EventOptions
from router.engines.detect import detect
from router.engines.engine import Engine, EventSource
from router.events.follower import Follower
from router.fleet.fetch import Fetcher
from router.sidecar.options import SidecarOptions

log = logging.getLogger("kvring.sidecar")

_ANSWER_SECONDS = 5.0
_FIRST_SECONDS = 1.0
_FACTS_SECONDS = 10.0


class EngineWatch:
    """Asks the engine what it is, and follows its events while it is the same.

    `reason` says why there is no follower, or why it knows nothing; empty where it does.
    """

    def __init__(
        self,
        options: SidecarOptions,
        events: EventOptions,
        namers: Namers,
        session: aiohttp.ClientSession,
        clock: Callable[[], float],
    ) -> None:
        self._options = options
        # Where an engine does not tell where it publishes, it is where replicas publish.
        self._events = events.model_copy(update={"source": "replica"})
        self._namers = namers
        self._clock = clock
        self._fetcher = Fetcher(options.engine.rstrip("/"), session, lambda: _ANSWER_SECONDS)
        self._engine: Engine | None = None
        self._followed: tuple[Sequence[EventSource], str] = ((), "")
        self._trouble = "the engine has not answered yet"
        self.follower: Follower | None = None
        self.identity = ""

    @property
    def reason(self) -> str:
        """Why no digest can be told."""
        if self.follower is None:
            return self._trouble
        if not self.follower.connected:
            return "nothing is heard at " + ", ".join(source.endpoint for source in self._followed[0])
        if not self.follower.trusted:
            return "what the engine holds is not known yet"
        return ""

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                try:
                    await self._ask()
                except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                    # Its events go on: an engine that is busy is no other one.
                    self._engine = None
                    self._say(f"the engine does not answer: {str(error) or type(error).__name__}")
                except Exception:
                    # A fault of ours must not end the watch while what it last said goes on being served.
                    self._engine = None
                    log.exception("watching the engine failed")
                await asyncio.sleep(_FACTS_SECONDS if self.follower else _FIRST_SECONDS)
        finally:
            await self._stop()

    async def _ask(self) -> None:
        if self._engine is None:
            self._engine = await detect(self._fetcher.get)
        host = urlsplit(self._fetcher.url).hostname or ""
        facts = await self._engine.facts(self._fetcher.get, host, self._events)
        model = facts.model
        sources: Sequence[EventSource] = facts.events
        if self._options.events:
            sources = (EventSource(self._options.events, self._options.replay, self._events.topic),)
        if (sources, model) == self._followed:
            return
        await self._stop()
        namer = self._namers.by_tokens(model)
        if not sources:
            self._say("the engine publishes no KV events")
        elif not model:
            self._say("the engine serves no model")
        elif namer is None:
            self._say(f"model {model!r} has no tokenizer_directory here: routers name its prompts by bytes")
        else:
            log.info("following the KV events of %s, model %r", self._fetcher.url, model)
            self._followed = (sources, model)
            self.identity = namer.identity.fingerprint
            limit = self._events.index_blocks
            self.follower = Follower(sources, self._namers.by_tokens, model, limit, self._clock)
            self.follower.start()
            self._trouble = ""

    async def _stop(self) -> None:
        follower, self.follower = self.follower, None
        self._followed = ((), "")
        if follower is not None:
            await follower.stop()

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("%s", trouble)
