"""Asks Redis whether it answers, how fast, what time it has, and whether it may be written to."""

from __future__ import annotations

from statistics import median
from time import perf_counter, time
from urllib.parse import urlsplit

from loadgen.doctor.evidence import RedisSeen
from loadgen.doctor.reach import Skew
from router.config import RedisOptions
from router.shared.connection import Connection, Unreachable

# Much longer than a router waits, so that a slow one is told from a dead one.
TIMEOUT_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 1.0
_ROUNDS = 5
# A write that changes nothing: no lease ends before 1970.
_WRITE = "return redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', 0)"


def connection_to(options: RedisOptions) -> Connection:
    """Return a patient connection; ValueError where the url is none."""
    return Connection(options.url, TIMEOUT_SECONDS, _LONGEST_PAUSE_SECONDS)


def place_of(options: RedisOptions) -> str:
    """Return the address without user and password."""
    parts = urlsplit(options.url.get_secret_value())
    if parts.scheme == "unix":
        return parts.path
    return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"


async def ask_redis(connection: Connection, options: RedisOptions) -> RedisSeen:
    """Ask it; what it does not answer is in the result, never raised."""
    place = place_of(options)
    took: list[float] = []
    skew: Skew | None = None
    try:
        # The first command also opens the connection.
        await connection.ask("PING")
        for _ in range(_ROUNDS):
            asked_at, started = time(), perf_counter()
            answer = await connection.ask("TIME")
            took.append(perf_counter() - started)
            skew = _skew(answer, asked_at, took[-1]) or skew
    except Unreachable as silent:
        return RedisSeen(place, problem=str(silent))
    read_only = ""
    try:
        await connection.ask("EVAL", _WRITE, 1, f"kvring:{{{options.group}}}:leases")
    except Unreachable as refused:
        read_only = str(refused)
    return RedisSeen(place, ask_seconds=median(took), read_only=read_only, skew=skew)


def _skew(answer: object, asked_at: float, took: float) -> Skew | None:
    if not isinstance(answer, list) or len(answer) != 2:
        return None
    try:
        told = int(answer[0]) + int(answer[1]) / 1e6
    except (TypeError, ValueError):
        return None
    return Skew(told - asked_at - took / 2, took / 2)
