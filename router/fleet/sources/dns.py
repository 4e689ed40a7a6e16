"""Members by DNS: the addresses behind a name, such as a headless Service, or its SRV records."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import dns.exception
import dns.name
import dns.rdatatype
from dns.rdtypes.IN.SRV import SRV

from router.config import DnsOptions
from router.fleet.members import Member
from router.fleet.sources.names import Names, UnresolvedError
from router.fleet.sources.outage import Outage
from router.settings import NAME_PATTERN

# As many as a fleet has at most; one look-up each where an SRV answer leaves addresses out.
_MOST_RECORDS = 1024
_LOOKUPS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class _Found:
    members: tuple[Member, ...]
    ttl_seconds: float


class DnsMembers:
    """Follows a name. Without answer the last list stands; a name that does not exist is an empty fleet.

    By address, every A and AAAA record is a replica. By SRV, every target is: at its IPv4 address where it
    has both, under the first label of its name where that is not made of the address, so that a pod of a
    StatefulSet keeps its place. A record of weight 0 next to others that weigh more is draining; priorities
    are not looked at. `etc` holds the system's `hosts` and `resolv.conf`. ValueError where the options
    name no host or no nameserver.
    """

    kind = "dns"

    def __init__(self, options: DnsOptions, etc: Path = Path("/etc")) -> None:
        self._options = options
        self._names = Names(options.nameservers, etc)
        self._outage = Outage(f"DNS of {options.host}")
        try:
            self._name = dns.name.from_text(options.host, None)
        except dns.exception.DNSException as error:
            raise ValueError(f"not a name to resolve: {options.host!r}: {error}") from error

    @property
    def up(self) -> bool:
        """Whether it is answered."""
        return not self._outage.lasts

    async def watch(self) -> AsyncIterator[Sequence[Member]]:
        """Yield the members once they are known, and after each change."""
        told: tuple[Member, ...] | None = None
        while True:
            try:
                found = await self._look_up()
            except UnresolvedError as error:
                wait = self._outage.failed(error.reason, error.detail)
            else:
                self._outage.ended()
                wait = max(
                    self._options.least_refresh_seconds, min(found.ttl_seconds, self._options.refresh_seconds)
                )
                if found.members != told:
                    told = found.members
                    yield told
            await asyncio.sleep(wait)

    async def _look_up(self) -> _Found:
        if self._options.record == "srv":
            return await self._by_srv()
        addresses = await self._names.addresses(self._name)
        return _Found(
            tuple(Member(_url(address, self._options.port)) for address in addresses.values[:_MOST_RECORDS]),
            addresses.ttl_seconds,
        )

    async def _by_srv(self) -> _Found:
        records = await self._names.records(self._name, dns.rdatatype.SRV)
        # The root as target says that the service is not to be had here.
        listed = [one for one in records.values if isinstance(one, SRV) and one.target != dns.name.root]
        listed = sorted(listed, key=lambda one: (one.target, one.port))[:_MOST_RECORDS]
        self._names.forget_all_but({one.target for one in listed})
        homes = dict(records.additional)
        gate = asyncio.Semaphore(_LOOKUPS_AT_ONCE)

        async def find(target: dns.name.Name) -> float:
            async with gate:
                addresses = await self._names.addresses(target)
            homes[target] = addresses.values
            return addresses.ttl_seconds

        missing = {one.target for one in listed} - homes.keys()
        ttls = await asyncio.gather(*map(find, missing), return_exceptions=True)
        for outcome in ttls:
            if isinstance(outcome, BaseException):
                raise outcome
        held = [outcome for outcome in ttls if isinstance(outcome, float)]
        return _Found(_members(listed, homes), min([records.ttl_seconds, *held]))


def _members(listed: Sequence[SRV], homes: dict[dns.name.Name, tuple[str, ...]]) -> tuple[Member, ...]:
    """The members that SRV records tell; `homes` gives the addresses of their targets, IPv4 first."""
    some_weigh = any(one.weight for one in listed)
    bearers = Counter(_label(target) for target, _ in {(one.target, one.port) for one in listed})
    members: dict[str, Member] = {}
    for one in listed:
        addresses = homes.get(one.target, ())
        # A target of both families is one replica, not two.
        home = [address for address in addresses if (":" in address) == (":" in addresses[0])]
        label = _label(one.target)
        # A name that several share names none of them.
        name = label if bearers[label] == 1 and len(home) == 1 else None
        draining = some_weigh and one.weight == 0
        for address in home:
            url = _url(address, one.port)
            if url not in members or members[url].draining:
                members[url] = Member(url, name, draining=draining)
    return tuple(members[url] for url in sorted(members)[:_MOST_RECORDS])


def _label(target: dns.name.Name) -> str | None:
    """The first label of a target as a replica's name; None where it is unfit, or made of an address."""
    label = dns.name.Name(target.labels[:1]).to_text().lower()
    for separator in ".:":
        with suppress(ValueError):
            ipaddress.ip_address(label.replace("-", separator))
            return None
    return label if re.match(NAME_PATTERN, label) else None


def _url(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
