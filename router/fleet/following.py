"""Following: the KV events of one engine, for the digest that it does not publish itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from router.chain.namers import Namers
from router.config import EventOptions
from router.engines.engine import EngineFacts, EventSource
from router.events.counts import EventCounts
from router.events.follower import Follower
from router.events.hub import Hub
from router.fleet.replica import Replica


class Following:
    """Follows where an engine publishes, and makes its replica's digest of what is heard."""

    def __init__(
        self,
        replica: Replica,
        namers: Namers,
        options: EventOptions,
        clock: Callable[[], float],
        hub: Hub | None,
    ) -> None:
        """Followers of one `hub` share its threads; without one each has its own."""
        self._replica = replica
        self._namers = namers
        self._options = options
        self._clock = clock
        self._hub = hub
        self._follower: Follower | None = None
        self._followed: tuple[Sequence[EventSource], str] = ((), "")
        self._version = -1

    @property
    def counts(self) -> EventCounts | None:
        """What came of following; None where nothing is followed."""
        return self._follower.counts if self._follower else None

    async def take(self, facts: EngineFacts) -> None:
        """Follow the sources of an engine; none of one that publishes none."""
        sources, model = facts.events, facts.model
        if not sources or self._namers.by_tokens(model) is None:
            # Events tell tokens: names by bytes cannot be compared with them.
            await self.stop()
            return
        if (sources, model) == self._followed:
            return
        await self.stop()
        self._followed = (sources, model)
        self._follower = Follower(
            sources, self._namers.by_tokens, model, self._options.index_blocks, self._clock, self._hub
        )
        self._follower.start()

    async def publish(self) -> None:
        """Let the replica have the digest of what is known now."""
        follower, replica = self._follower, self._replica
        if follower is None:
            return
        namer = self._namers.by_tokens(self._followed[1])
        if namer is None:
            return
        version = follower.names_version
        epoch = f"{replica.uid or replica.anonymous_name}:{follower.epoch}"
        same = version == self._version and replica.digest is not None and replica.digest.epoch == epoch
        if same and follower.trusted:
            replica.digest_still_true(self._clock())
            return
        digest = await follower.digest(namer.identity.fingerprint, epoch)
        if digest is not None:
            self._version = version
            replica.take_digest(digest, self._clock())

    async def stop(self) -> None:
        """Follow nothing any more."""
        follower, self._follower = self._follower, None
        self._followed = ((), "")
        self._version = -1
        if follower is not None:
            await follower.stop()
