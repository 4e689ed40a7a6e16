"""What an engine that is not ours tells of itself, and the one interface of all their adapters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from router.config import EventOptions


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer. `body` is bounded by who fetched it."""

    status: int
    content_type: str
    body: bytes


# Fetches a path of the replica; raises aiohttp.ClientError or TimeoutError where there is no answer.
Get = Callable[[str], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where one rank publishes KV events, and where it replays them (empty: nowhere): ZMQ addresses."""

    endpoint: str
    replay_endpoint: str = ""
    topic: str = ""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What changes at most when the engine starts anew. What it does not tell is None or empty.

    `process` names one life of the process: another one means an empty cache. `models` are the names it
    serves, its own before its adapters'; `adapters` maps a LoRA adapter's name to that of its base.
    `block_count` is over all data parallel ranks; `context_tokens` is the longest prompt and answer together.
    `events` are where it says that it publishes, or where it is configured to where it cannot say; none
    where it says that it publishes none.
    """

    engine: str
    version: str = ""
    process: str = ""
    models: tuple[str, ...] = ()
    context_tokens: int | None = None
    block_tokens: int | None = None
    block_count: int | None = None
    hash_algorithm: str = ""
    prefix_caching: bool | None = None
    events: tuple[EventSource, ...] = ()
    adapters: Mapping[str, str] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The model that its chain is of, empty where it serves none."""
        return self.models[0] if self.models else ""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of all data parallel ranks together.

    `running` and `waiting` are requests; `kv_usage` is a share of 0 to 1, the mean of the ranks, and 0 where
    the engine tells none. `waiting_tokens` are uncached prompt tokens that wait to be computed.
    `query_tokens` and `hit_tokens` are running totals of prompt tokens asked for and found in the cache.
    `process` is as in EngineFacts, empty where the same answer does not tell it.
    """

    running: int
    waiting: int
    kv_usage: float = 0.0
    waiting_tokens: int | None = None
    query_tokens: float | None = None
    hit_tokens: float | None = None
    process: str = ""


class Engine(Protocol):
    """Asks one replica, in the words of its engine; each replica has its own, since it notes what is there.

    All methods raise what their `get` raises, and ValueError for an answer that makes no sense: the message
    says what is wrong with it.
    """

    kind: str
    # Whether /health computes a token: such a probe is slow on a busy replica, and no reason to suspect it.
    health_computes: bool

    async def ready(self, get: Get) -> bool:
        """Return whether it takes requests; False while it loads or ends."""

    async def facts(self, get: Get, host: str, options: EventOptions) -> EngineFacts:
        """Return what it tells of itself, by a few requests. `host` is the replica's, for event sources."""

    async def load(self, get: Get) -> EngineLoad | None:
        """Return its load, by one request, two where the usual one turns out to be missing; None untold."""
