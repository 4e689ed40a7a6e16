"""Leases that replicas hold in Redis: who serves, told by the replicas themselves.

A sorted set scores the uid of each by when it expires, on Redis's own clock; a hash describes them. Both have
the group's hash tag, so that a cluster keeps them in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from router.settings import NAME_PATTERN
from router.shared.connection import Connection

MOST_LEASES = 1024
_LARGEST_DESCRIPTION_BYTES = 2048
# Longer than from one reading to the next, hints aside.
_FAREWELL_SECONDS = 2.0
# Nothing is left behind by a group that is no more.
_FORGET_MS = 24 * 3600 * 1000

# Removes what expired. It always writes: a server that may not be written to says so at once.
SWEEP = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', 0)
local expired = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1024)
if #expired > 0 then
    redis.call('ZREM', KEYS[1], unpack(expired))
    redis.call('HDEL', KEYS[2], unpack(expired))
end
"""
_KEEP = (
    SWEEP
    + """
local before = redis.call('HGET', KEYS[2], ARGV[1])
if not before and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[4]) then return 'full' end
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
if before == ARGV[2] then return 'renewed' end
redis.call('PUBLISH', ARGV[6], ARGV[1])
return before and 'changed' or 'new'
"""
)
_READ = (
    SWEEP
    + """
local found = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
local answer = {}
for i = 1, #found, 2 do
    answer[#answer + 1] = found[i + 1] - now
    answer[#answer + 1] = redis.call('HGET', KEYS[2], found[i]) or ''
end
return answer
"""
)


class ReplicaLease(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """What a replica says of itself for the next `seconds`.

    `url` is where routers reach it, `name` is stable over restarts, `uid` new with each process.
    """

    name: Annotated[str, msgspec.Meta(pattern=NAME_PATTERN.removesuffix("$") + r"\Z")]
    url: Annotated[str, msgspec.Meta(pattern=r"^https?://[^/?#@\s]{1,255}\Z")]
    uid: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    draining: bool = False


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease as it was read: it ends after `remaining_seconds`."""

    lease: ReplicaLease
    remaining_seconds: float


class Leases:
    """The leases of one group. All methods raise Unreachable where Redis is."""

    def __init__(self, connection: Connection, group: str) -> None:
        self.connection = connection
        self.channel = f"kvring:{{{group}}}:leases:changed"
        self._keys = (f"kvring:{{{group}}}:leases", f"kvring:{{{group}}}:leases:told")

    async def keep(self, lease: ReplicaLease) -> str:
        """Register or renew a lease; return `new`, `renewed`, `changed`, or `full` where there is no room."""
        answer = await self._run(
            _KEEP,
            lease.uid,
            msgspec.json.encode(lease),
            round(lease.seconds * 1000),
            MOST_LEASES,
            _FORGET_MS,
            self.channel,
        )
        return str(answer, "ascii")

    async def drop(self, lease: ReplicaLease) -> None:
        """Give a lease up. It says that it drains for a moment more, so that no router takes it for lost."""
        seconds = min(lease.seconds, _FAREWELL_SECONDS)
        await self.keep(msgspec.structs.replace(lease, draining=True, seconds=seconds))

    async def read(self) -> Sequence[HeldLease]:
        """Return all leases; what does not read as one is left out."""
        answer = await self._run(_READ, MOST_LEASES)
        found = []
        for remaining_ms, told in zip(answer[::2], answer[1::2], strict=True):
            if len(told) <= _LARGEST_DESCRIPTION_BYTES:
                try:
                    lease = msgspec.json.decode(told, type=ReplicaLease)
                except msgspec.MsgspecError:
                    continue
                found.append(HeldLease(lease, remaining_ms / 1000))
        return found

    async def _run(self, script: str, *arguments: str | bytes | float) -> Any:
        return await self.connection.ask("EVAL", script, len(self._keys), *self._keys, *arguments)
