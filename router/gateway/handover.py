"""Hand-over: what is hot on a replica that drains is computed at its new homes ahead of requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from io import BytesIO
from time import monotonic
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
import orjson

from router.chain.keys import Keys
from router.config import HandoverOptions
from router.fleet.fleet import Fleet
from router.fleet.replica import Replica
from router.gateway.prepare import Preparer
from router.gateway.serving import Serving
from router.observe.metrics import RouterMetrics
from router.placement.ask import Ask

log = logging.getLogger("kvring.handover")

# Prefills under way at once, each at another new home.
_AT_ONCE = 4
_ASK_AGAIN_SECONDS = 0.25
_LARGEST_ANSWER_BYTES = 64 * 1024 * 1024


# Ids are 32 bits wide in chains.
_Token = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class _ConflictError(ValueError):
    """The replica does not do that now: 409."""


class _Prefix(msgspec.Struct, frozen=True):
    """One hot prefix: its tokens, and the salt it is kept under."""

    tokens: list[_Token]
    salt: str | None = None


class _Hot(msgspec.Struct, frozen=True):
    """What a replica answers that drains."""

    prefixes: list[_Prefix]


class _Computed(msgspec.Struct, frozen=True):
    """What a replica answers that has computed a prefix."""

    computed_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0


_Told = TypeVar("_Told", _Hot, _Computed)


class Handover:
    """Pre-warms for each replica of ours that drains, which gives each prefix to one router only.

    Best effort, and bounded in tokens and time: what is not handed over is computed when it is asked for.
    """

    def __init__(
        self,
        serving: Callable[[], Serving],
        fleet: Fleet,
        preparer: Preparer,
        session: aiohttp.ClientSession,
        metrics: RouterMetrics,
    ) -> None:
        self._serving = serving
        self._fleet = fleet
        self._preparer = preparer
        self._session = session
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, replica: Replica) -> None:
        """Begin for a replica that drains; engines that do not tell what is hot are left alone."""
        options = self._serving().config.fleet.handover
        if replica.state is not None and options.prefill_tokens:
            task = asyncio.create_task(self._hand_over(replica, replica.model, options))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End what runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _hand_over(self, replica: Replica, model: str, options: HandoverOptions) -> None:
        counts = {"warmed": 0}
        try:
            async with asyncio.timeout(options.seconds):
                prefixes = iter(await self._hot(replica, options))
                # Where one of them fails, the others end with it, and nothing outlives the time.
                async with asyncio.TaskGroup() as workers:
                    for _ in range(_AT_ONCE):
                        workers.create_task(self._work(prefixes, model, options, counts))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.warning("hand-over of replica %s: %s", replica.name, str(error) or type(error).__name__)
        except Exception:
            # A policy from elsewhere, most likely.
            log.exception("hand-over of replica %s failed", replica.name)
        log.info("replica %s drains: %d of its prefixes are warm elsewhere", replica.name, counts["warmed"])

    async def _hot(self, replica: Replica, options: HandoverOptions) -> list[_Prefix]:
        """Ask which prefixes are this router's to hand over, the hottest first."""
        query = {"limit": str(options.prefixes), "tokens": str(options.prefill_tokens)}
        while True:
            try:
                raw = await self._post(f"{replica.url}/handover", query, None, options)
                break
            except _ConflictError:
                # A pod is said to be going before its process is told so: it does not drain yet.
                await asyncio.sleep(_ASK_AGAIN_SECONDS)
        left = options.prefill_tokens
        prefixes = []
        for prefix in (await self._preparer.in_thread(_read, raw, _Hot)).prefixes[: options.prefixes]:
            left -= len(prefix.tokens)
            if left >= 0:
                prefixes.append(prefix)
        return prefixes

    async def _work(
        self, prefixes: Iterator[_Prefix], model: str, options: HandoverOptions, counts: dict[str, int]
    ) -> None:
        for prefix in prefixes:
            result = await self._warm(prefix, model, options)
            counts[result] = counts.get(result, 0) + 1
            self._metrics.handover_prefixes.labels(result).inc()

    async def _warm(self, prefix: _Prefix, model: str, options: HandoverOptions) -> str:
        """Compute one prefix where its requests will go from now on; say what came of it."""
        namers = self._preparer.namers
        namer = namers.by_tokens(model) or namers.by_bytes
        keys = Keys(model, salt=prefix.salt)
        chain = await self._preparer.in_thread(namer.chain_of_tokens, prefix.tokens, keys)
        if not chain.names:
            return "skipped"
        ask = Ask(model, len(prefix.tokens), chain.names[-1], chain)
        now = monotonic()
        view = self._fleet.view(model, now)
        if not len(view):
            return "skipped"
        choice = self._serving().policy.rank(ask, view, now)[0]
        home = self._fleet.by_name(choice.name)
        if home is None or home.state is None or choice.wait_seconds > options.busy_seconds:
            return "skipped"
        if choice.expected_tokens >= len(prefix.tokens) - chain.block_tokens:
            return "held"
        lease = home.load.open(choice.prefill_seconds, now, len(prefix.tokens))
        try:
            body = {"tokens": prefix.tokens, "salt": prefix.salt}
            data = await self._preparer.in_thread(orjson.dumps, body)
            answer = _read(await self._post(f"{home.url}/prefill", {}, data, options), _Computed)
        except (aiohttp.ClientError, OSError, ValueError):
            return "refused"
        finally:
            home.load.close(lease)
        self._serving().policy.commit(ask, choice, monotonic())
        self._metrics.handover_tokens.inc(answer.computed_tokens)
        return "warmed"

    async def _post(
        self, url: str, query: dict[str, str], data: bytes | None, options: HandoverOptions
    ) -> bytes:
        async with self._session.post(
            url,
            params=query,
            data=None if data is None else BytesIO(data),
            headers=None if data is None else {"Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=options.seconds),
            allow_redirects=False,
        ) as response:
            raw = bytearray()
            while len(raw) < _LARGEST_ANSWER_BYTES and (piece := await response.content.readany()):
                raw += piece
            if response.status != 200:
                kind = _ConflictError if response.status == 409 else ValueError
                raise kind(f"{urlsplit(url).path} answered {response.status}")
        return bytes(raw)


def _read(raw: bytes, kind: type[_Told]) -> _Told:
    """Read an answer; ValueError where it is not one."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"odd answer: {error}") from error
