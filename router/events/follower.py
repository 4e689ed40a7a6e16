"""The follower of one replica: its KV events, of all its ranks, into the digest that it does not publish."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from uuid import uuid4

from router.chain.digest import Digest
from router.chain.namer import ChainNamer
from router.events.counts import EventCounts
from router.events.feed import Feed, Source
from router.events.hub import Hub
from router.events.index import ResidentIndex

log = logging.getLogger("kvring.events")

# Digests of more names are built in a thread.
_INLINE_NAMES = 2_000


class Follower:
    """Follows one replica between `start` and `stop`.

    Ranks have caches of their own and one address: what any of them holds, the replica holds.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        namer_of: Callable[[str], ChainNamer | None],
        model: str,
        limit_blocks: int,
        clock: Callable[[], float],
        hub: Hub | None = None,
    ) -> None:
        """Make ready to follow `sources`, one a rank; nothing is opened before the start.

        `namer_of` tells who names a model's prompts over tokens, None for one that is named by bytes: events
        tell tokens, so that nothing can be known of it. `model` is the name under which clients ask for the
        replica's model; its adapters are asked for by theirs. At most `limit_blocks` of the engine's blocks
        are known. Followers with one `hub` share its threads; else it has its own.
        """
        self._sources = sources
        self._namer_of = namer_of
        self._model = model
        self._limit = max(1024, limit_blocks // max(1, len(sources)))
        self._clock = clock
        self._hub = hub
        self._own_hub: Hub | None = None
        self._life = uuid4().hex[:12]
        self._feeds: list[Feed] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._built: tuple[int, str, str] | None = None
        self._digest: Digest | None = None

    def start(self) -> None:
        """Begin to follow, within the running event loop."""
        namer = self._namer_of(self._model)
        if namer is None or namer.tokenizer is None:
            log.warning("model %r has no tokenizer here: KV events of it cannot be used", self._model)
            return
        hub = self._hub
        if hub is None:
            hub = self._own_hub = Hub()
        for source in self._sources:
            index = ResidentIndex(namer, self._model, self._namer_of, self._limit)
            feed = Feed(source, index, hub, self._clock)
            self._feeds.append(feed)
            self._tasks.append(asyncio.create_task(feed.run(), name=f"follow {source.endpoint}"))

    async def stop(self) -> None:
        """End, and forget what is known."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._feeds.clear()
        if self._own_hub is not None:
            self._own_hub.close()
            self._own_hub = None

    @property
    def connected(self) -> bool:
        """Whether all ranks are heard."""
        return bool(self._feeds) and all(feed.connected for feed in self._feeds)

    @property
    def trusted(self) -> bool:
        """Whether what is known is what the replica holds, as far as it told since it was followed."""
        return bool(self._feeds) and all(feed.trusted for feed in self._feeds)

    @property
    def epoch(self) -> str:
        """Names one life of what is known: another one begins with each restart, clearing and loss."""
        return f"{self._life}.{sum(feed.index.life for feed in self._feeds)}"

    @property
    def names_version(self) -> int:
        """Grows whenever the digest changes."""
        return sum(feed.index.names_version for feed in self._feeds)

    @property
    def batches(self) -> int:
        """Messages taken."""
        return sum(feed.batches for feed in self._feeds)

    @property
    def gaps(self) -> int:
        """Times that messages were missing, whether they could be had later or not."""
        return sum(feed.gaps for feed in self._feeds)

    @property
    def dropped(self) -> int:
        """Times that an index was dropped, as it could not be trusted any more."""
        return sum(feed.dropped for feed in self._feeds)

    @property
    def heard_at(self) -> float:
        """When the rank that was silent for longest last said something; -inf where one never did."""
        return min((feed.heard_at for feed in self._feeds), default=float("-inf"))

    @property
    def counts(self) -> EventCounts:
        """What metrics tell."""
        indexes = [feed.index for feed in self._feeds]
        skipped: Counter[str] = Counter()
        for index in indexes:
            skipped.update(index.skipped_blocks)
        return EventCounts(
            connected=self.connected,
            batches=self.batches,
            gaps=self.gaps,
            dropped=self.dropped,
            unknown_events=sum(feed.unknown for feed in self._feeds),
            blocks=sum(index.block_count for index in indexes),
            orphans=sum(index.orphan_count for index in indexes),
            evicted=sum(index.evicted_blocks for index in indexes),
            skipped=dict(skipped),
        )

    async def digest(self, identity: str, epoch: str) -> Digest | None:
        """Return the digest of what is known now, of chains named by `identity`, as of that `epoch`.

        None while that is not to be trusted: no publisher, a replay under way, other names than asked for.
        """
        if not self.trusted or any(feed.index.identity != identity for feed in self._feeds):
            return None
        wanted = (self.names_version, identity, epoch)
        if wanted != self._built:
            held = [feed.index.names() for feed in self._feeds]
            if sum(map(len, held)) <= _INLINE_NAMES:
                digest = _digest(held, identity, epoch)
            else:
                digest = await asyncio.to_thread(_digest, held, identity, epoch)
            self._built, self._digest = wanted, digest
            return digest
        return self._digest


def _digest(held: Sequence[list[bytes]], identity: str, epoch: str) -> Digest:
    """Return the digest of what ranks hold; several may hold the same."""
    return Digest.of(held[0] if len(held) == 1 else set().union(*held), identity, epoch)
