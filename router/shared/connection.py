"""The connection to Redis, for background tasks alone: bounded waits, no retries, and a breaker.

No request's path ever waits for it. What cannot be asked now fails at once, and each router and replica goes
by what it knows itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from time import monotonic
from typing import Any

from pydantic import SecretStr
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, RedisError

log = logging.getLogger("kvring.shared")

# One for commands, which go one after the other, one that listens, and some that are being closed.
_MOST_CONNECTIONS = 4
_FIRST_PAUSE_SECONDS = 0.1
# Silence is no failure of one that listens: a dead connection is found by the commands beside it.
_LISTEN_SECONDS = 30.0
_SHOWN_CHARACTERS = 200


class Unreachable(Exception):
    """Redis did not answer as it should, or is not asked again yet."""


class Connection:
    """One Redis. After a failure it is asked again only after a pause, which doubles up to the longest."""

    def __init__(
        self,
        url: SecretStr,
        timeout_seconds: float,
        longest_pause_seconds: float,
        clock: Callable[[], float] = monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Connects to nothing yet; ValueError where the url, which is never shown, is none."""
        self._timeout = timeout_seconds
        self._longest_pause = longest_pause_seconds
        self._clock = clock
        self._draw = draw
        self._configured = _options_of(url, timeout_seconds)
        self._pool = self._new_pool()
        self._one_at_a_time = asyncio.Lock()
        self._up: bool | None = None
        self._up_since = self._last_answer = clock()
        self._pause = 0.0
        self._not_before = float("-inf")

    @property
    def up(self) -> bool:
        """Whether the last command was answered."""
        return self._up is True

    @property
    def age_seconds(self) -> float:
        """Seconds since a command was last answered; since it was made, where none was."""
        return self._clock() - self._last_answer

    @property
    def up_seconds(self) -> float:
        """Seconds for which all commands have been answered, 0 where the last was not."""
        return self._clock() - self._up_since if self.up else 0.0

    async def ask(self, *command: str | bytes | float) -> Any:
        """Send one command and return its answer, as bytes, integers and lists.

        Unreachable after two timeouts at most, and at once during a pause.
        """
        async with self._one_at_a_time:
            if self._clock() < self._not_before:
                raise Unreachable("not asked again yet")
            try:
                # One to connect and one to be answered, however slowly either trickles in.
                async with asyncio.timeout(2 * self._timeout):
                    answer = await self._send(command)
            except (RedisError, OSError, TimeoutError) as error:
                await self._failed(error)
                raise Unreachable(self._shown(error)) from error
            self._answered()
            return answer

    async def listen(self, channel: str) -> AsyncIterator[None]:
        """Yield for each message on `channel` until the connection breaks. Messages may be missed."""
        async with aclosing(Redis(connection_pool=self._pool).pubsub()) as listening:
            with suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(2 * self._timeout):
                    await listening.subscribe(channel)
                while True:
                    message = await listening.get_message(timeout=_LISTEN_SECONDS)
                    if message is not None and message["type"] == "message":
                        yield

    async def close(self) -> None:
        """Hang up, and ask nothing more; takes one timeout at most."""
        self._not_before = float("inf")
        await self._hang_up()

    async def _send(self, command: tuple[str | bytes | float, ...]) -> Any:
        try:
            return await self._execute(command)
        except MovedError as moved:
            # A node of a cluster that knows who has the keys: all of them have one place.
            await self._hang_up()
            self._pool = self._new_pool(host=moved.host, port=moved.port)
            return await self._execute(command)

    async def _execute(self, command: tuple[str | bytes | float, ...]) -> Any:
        client: Any = Redis(connection_pool=self._pool)
        return await client.execute_command(*command)

    def _answered(self) -> None:
        self._last_answer = self._clock()
        if not self.up:
            self._up_since = self._last_answer
            log.info("Redis at %s answers", self._place())
        self._up = True

    async def _failed(self, error: Exception) -> None:
        """Hang up, whatever it was: a server that refuses writes may not be who the name stands for now."""
        now = self._clock()
        # One that fails again soon was not mended.
        mended = self._pause == 0.0 or (self.up and now - self._up_since > self._longest_pause)
        pause = _FIRST_PAUSE_SECONDS if mended else 2 * self._pause
        self._pause = min(pause, self._longest_pause)
        # Not all at the same time.
        self._not_before = now + self._pause * (0.5 + 0.5 * self._draw())
        if self._up is not False:
            log.warning(
                "Redis at %s cannot be used; meanwhile each goes by what it knows itself: %s",
                self._place(),
                self._shown(error),
            )
        self._up = False
        await self._hang_up()
        self._pool = self._new_pool()

    async def _hang_up(self) -> None:
        with suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self._pool.disconnect()

    def _new_pool(self, **moved: Any) -> ConnectionPool:
        return ConnectionPool(**(self._configured | moved))

    def _place(self) -> str:
        options = self._configured
        return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")

    def _shown(self, error: Exception) -> str:
        """Return what went wrong, never with the password, which some servers repeat."""
        text = str(error) or type(error).__name__
        password = str(self._configured.get("password") or "")
        return (text.replace(password, "***") if password else text)[:_SHOWN_CHARACTERS]


def _options_of(url: SecretStr, timeout_seconds: float) -> dict[str, Any]:
    """Return options of a connection pool; what the url says of timeouts and the like does not count."""
    try:
        told: dict[str, Any] = {**parse_url(url.get_secret_value())}
    except ValueError:
        # The message might show the password.
        raise ValueError("a Redis url begins with redis://, rediss:// or unix://") from None
    kept = ("connection_class", "host", "port", "path", "db", "username", "password")
    tls = {name: value for name, value in told.items() if name.startswith("ssl_")}
    return (
        {name: told[name] for name in kept if name in told}
        | tls
        | {
            "max_connections": _MOST_CONNECTIONS,
            # Timed where it is asked: the client times writes in a way that can swallow a cancellation.
            "socket_timeout": None,
            "socket_connect_timeout": timeout_seconds,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
    )
