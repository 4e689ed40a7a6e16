"""Addresses: replicas as a gateway knows them, by `ip:port`."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

log = logging.getLogger("kvring.picker")

_PORTS = {"http": 80, "https": 443}
# New members wait for one look; names hardly ever change behind a running fleet.
_LOOK_SECONDS = 0.5
_REFRESH_SECONDS = 30.0
_RESOLVE_SECONDS = 5.0


class Addresses:
    """Knows the address of every replica. Those given by a name are looked up in the background.

    A decision never waits for that: a replica whose name has not been resolved yet is passed over.
    """

    def __init__(self, urls: Callable[[], Sequence[str]]) -> None:
        """`urls` returns where the members of the fleet serve."""
        self._urls = urls
        self._known: dict[str, str] = {}
        self._resolved_at: dict[str, float] = {}
        self._failed: set[str] = set()

    def of(self, url: str) -> str | None:
        """Return `ip:port` ([ip]:port of IPv6), None while it is not known."""
        known = self._known.get(url)
        if known is None:
            known = literal_address(url)
            if known is not None:
                self._known[url] = known
        return known

    @property
    def unknown(self) -> int:
        """How many members have no address."""
        return sum(self.of(url) is None for url in self._urls())

    async def follow(self) -> None:
        """Resolve names, and forget who left, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            urls = set(self._urls())
            for gone in (self._known.keys() | self._failed) - urls:
                self._known.pop(gone, None)
                self._resolved_at.pop(gone, None)
                self._failed.discard(gone)
            now = loop.time()
            for url in urls:
                due = self._resolved_at.get(url, float("-inf")) + _REFRESH_SECONDS
                if now >= due and literal_address(url) is None:
                    await self._resolve(url, loop)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _resolve(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        """Look a name up; of several addresses the least one, so that all pickers agree."""
        parts = urlsplit(url)
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                found = await loop.getaddrinfo(parts.hostname, _port(url), type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            if url not in self._failed:
                log.warning("%s has no address: %s", url, error or "no answer in time")
            self._failed.add(url)
            return
        self._failed.discard(url)
        self._resolved_at[url] = loop.time()
        self._known[url] = min(_joined(str(entry[4][0]), int(entry[4][1])) for entry in found)


def literal_address(url: str) -> str | None:
    """Return a url's `ip:port`; None where its host is a name."""
    try:
        return _joined(str(ip_address(urlsplit(url).hostname or "")), _port(url))
    except ValueError:
        return None


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or _PORTS[parts.scheme]


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
