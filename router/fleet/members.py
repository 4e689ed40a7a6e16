"""Where members come from: the static list, and DNS."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from router.config import DnsOptions, ReplicaAddress

log = logging.getLogger("kvring.fleet")


@dataclass(frozen=True, slots=True)
class Member:
    """One address; `name` where the source knows it."""

    url: str
    name: str | None = None


class MemberSource(Protocol):
    """Lists the members there are now. `refresh_seconds` is how often to ask; None for once."""

    refresh_seconds: float | None

    async def members(self) -> Sequence[Member] | None:
        """Return all members, or None where the source did not answer: the old list then stands."""


class StaticMembers:
    """The members named in the configuration."""

    refresh_seconds: float | None = None

    def __init__(self, addresses: Sequence[ReplicaAddress]) -> None:
        self._members = [Member(address.url, address.name) for address in addresses]

    async def members(self) -> Sequence[Member]:
        """Return the configured members."""
        return self._members


class DnsMembers:
    """The addresses behind a name, such as a headless Service; each is asked its own name."""

    def __init__(self, options: DnsOptions) -> None:
        self._host = options.host
        self._port = options.port
        self.refresh_seconds: float | None = options.refresh_seconds
        self._failed = False

    async def members(self) -> Sequence[Member] | None:
        """Resolve; a name without addresses is an empty fleet, a resolver that fails is no answer."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM
            )
        except socket.gaierror as error:
            if not self._failed:
                log.warning("cannot resolve %s: %s", self._host, error)
            self._failed = True
            # "No such name" is what a headless Service without ready pods answers.
            return [] if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA) else None
        self._failed = False
        addresses = sorted({str(entry[4][0]) for entry in found})
        return [Member(f"http://{_host(address)}:{self._port}") for address in addresses]


def _host(address: str) -> str:
    return f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
