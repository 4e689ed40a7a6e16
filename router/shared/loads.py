"""Load that routers share: each tells its own counts by replica, and counts the others' in.

Counts are absolute and never added up in Redis, so that a router that dies leaves nothing behind: what it
told last is void when its time is up. All is told and read in one command, in the background.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Annotated, Protocol

import msgspec

from router.config import RedisOptions
from router.shared.connection import Connection, Unreachable
from router.shared.leases import SWEEP
from router.shared.repeated import Repeated

MOST_ROUTERS = 64
_LARGEST_COUNTS_BYTES = 1024 * 1024
# Longer than any counts last.
_FORGET_MS = 600_000

_SHARE = (
    SWEEP
    + """
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
local found = redis.call('ZREVRANGE', KEYS[1], 0, ARGV[4], 'WITHSCORES')
local answer = {}
for i = 1, #found, 2 do
    if found[i] ~= ARGV[1] and #answer < 2 * ARGV[4] then
        answer[#answer + 1] = found[i + 1] - now
        answer[#answer + 1] = redis.call('HGET', KEYS[2], found[i]) or ''
    end
end
return answer
"""
)
_LEAVE = """
redis.call('HDEL', KEYS[2], ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[1])
"""


class Book(Protocol):
    """What one router has on one replica, and where it is told what others have."""

    @property
    def in_flight(self) -> int:
        """Its own requests."""

    @property
    def in_flight_tokens(self) -> int:
        """Their prompts."""

    @property
    def unreported_seconds(self) -> float:
        """Prefill it sent that no report of the replica covers."""

    def others(self, in_flight: int, tokens: int, owed: Sequence[tuple[float, float]]) -> None:
        """Take all other routers' counts; `owed` are unreported seconds, each with when that was told."""


class Counted(Protocol):
    """A replica: its counts are its own only under the same name and in the same life."""

    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def load(self) -> Book: ...


class Counting(Protocol):
    """The fleet of one router."""

    @property
    def replicas(self) -> Sequence[Counted]: ...


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**50)]


class _Counts(msgspec.Struct, frozen=True, array_like=True):
    """What one router has on one replica."""

    name: str
    uid: str
    in_flight: _Count
    tokens: _Count
    owed_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class _Told(msgspec.Struct, frozen=True):
    """All that one router tells; `lasts_ms` from when it was told."""

    lasts_ms: Annotated[int, msgspec.Meta(ge=1, le=_FORGET_MS)]
    counts: Annotated[list[_Counts], msgspec.Meta(max_length=4096)]


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one router told, with when that was and until when it counts, by this router's clock."""

    counts: Sequence[_Counts]
    at: float
    until: float


class SharedLoad:
    """Tells this router's counts and takes the others', again and again."""

    def __init__(
        self, connection: Connection, options: RedisOptions, fleet: Counting, clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._options = options
        self._fleet = fleet
        self._clock = clock
        self._id = token_hex(8)
        self._keys = (f"kvring:{{{options.group}}}:routers", f"kvring:{{{options.group}}}:routers:told")
        self._others: list[_Reading] = []
        self._sharing = Repeated("sharing load", self.share, options.publish_seconds)

    @property
    def routers(self) -> int:
        """How many other routers' counts are counted in."""
        return len(self._others)

    def start(self) -> None:
        """Share from now on, whatever Redis answers."""
        self._sharing.start()

    async def stop(self) -> None:
        """End, and take this router's counts back, if Redis can be reached; else they expire."""
        await self._sharing.stop(self._leave)

    async def share(self) -> None:
        """Tell and take once. Without Redis, what was told before counts until its time is up."""
        lasts_ms = round(self._options.expire_seconds * 1000)
        told = msgspec.json.encode(_Told(lasts_ms, self._own_counts()))
        try:
            answer = await self._connection.ask(
                "EVAL",
                _SHARE,
                len(self._keys),
                *self._keys,
                self._id,
                told,
                lasts_ms,
                MOST_ROUTERS,
                _FORGET_MS,
            )
        except Unreachable:
            now = self._clock()
            self._others = [one for one in self._others if one.until > now]
        else:
            now = self._clock()
            rows = zip(answer[::2], answer[1::2], strict=True)
            read = [_read(raw, remaining_ms, now) for remaining_ms, raw in rows]
            self._others = [one for one in read if one is not None]
        self._count_in()

    async def _leave(self) -> None:
        await self._connection.ask("EVAL", _LEAVE, len(self._keys), *self._keys, self._id)

    def _own_counts(self) -> list[_Counts]:
        return [
            _Counts(
                replica.name,
                replica.uid,
                replica.load.in_flight,
                replica.load.in_flight_tokens,
                round(replica.load.unreported_seconds, 4),
            )
            for replica in self._fleet.replicas
            if replica.name and replica.load.in_flight
        ]

    def _count_in(self) -> None:
        found: defaultdict[tuple[str, str], list[tuple[_Counts, float]]] = defaultdict(list)
        for reading in self._others:
            for counts in reading.counts:
                found[counts.name, counts.uid].append((counts, reading.at))
        for replica in self._fleet.replicas:
            told = found.get((replica.name, replica.uid), ())
            replica.load.others(
                sum(counts.in_flight for counts, _ in told),
                sum(counts.tokens for counts, _ in told),
                [(counts.owed_seconds, at) for counts, at in told if counts.owed_seconds > 0],
            )


def _read(raw: bytes, remaining_ms: int, now: float) -> _Reading | None:
    """Read what a router told; None where that is not what routers tell."""
    if len(raw) > _LARGEST_COUNTS_BYTES:
        return None
    try:
        told = msgspec.json.decode(raw, type=_Told)
    except msgspec.MsgspecError:
        return None
    age_ms = max(0, told.lasts_ms - remaining_ms)
    return _Reading(told.counts, now - age_ms / 1000, now + remaining_ms / 1000)
