"""Members by DNS: the addresses behind a name, such as a headless Service."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Sequence

from router.config import DnsOptions
from router.fleet.members import Member

log = logging.getLogger("kvring.fleet")


class DnsMembers:
    """The addresses behind a name; each is asked its own name."""

    kind = "dns"

    def __init__(self, options: DnsOptions) -> None:
        self._options = options
        self._failed = False

    async def watch(self) -> AsyncIterator[Sequence[Member]]:
        """Yield the members again and again."""
        while True:
            members = await self._members()
            if members is not None:
                yield members
            await asyncio.sleep(self._options.refresh_seconds)

    async def _members(self) -> Sequence[Member] | None:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                self._options.host, self._options.port, type=socket.SOCK_STREAM
            )
        except socket.gaierror as error:
            if not self._failed:
                log.warning("cannot resolve %s: %s", self._options.host, error)
            self._failed = True
            # "No such name" is what a headless Service without ready pods answers.
            return [] if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA) else None
        self._failed = False
        addresses = sorted({str(entry[4][0]) for entry in found})
        return [Member(f"http://{_host(address)}:{self._options.port}") for address in addresses]


def _host(address: str) -> str:
    return f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
