"""Names to addresses: the hosts file first, then DNS; a family without answer keeps what it told last."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import dns.asyncresolver
import dns.exception
import dns.message
import dns.name
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.resolver

# All tries of one look-up together; a list some seconds old is better than a watch that hangs.
_LOOKUP_SECONDS = 5.0
_FAMILIES = (dns.rdatatype.A, dns.rdatatype.AAAA)


class UnresolvedError(Exception):
    """DNS gave no answer: it is not known what there is. `reason` is the kind of failure."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one name and type, none where DNS says that there are none, and how long that holds."""

    values: tuple[dns.rdata.Rdata, ...]
    additional: dict[dns.name.Name, tuple[str, ...]]
    ttl_seconds: float


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of one name as text, IPv4 before IPv6, each once."""

    values: tuple[str, ...]
    ttl_seconds: float


class Names:
    """Resolves names by the system's files in `etc`, or by `nameservers`, ADDRESS or ADDRESS:PORT each.

    ValueError where a nameserver is not such.
    """

    def __init__(self, nameservers: Collection[str], etc: Path) -> None:
        self._nameservers = [_nameserver(text) for text in nameservers]
        self._etc = etc
        self._resolver: dns.asyncresolver.Resolver | None = None
        self._last: dict[tuple[dns.name.Name, dns.rdatatype.RdataType], tuple[str, ...]] = {}

    async def records(self, name: dns.name.Name, record: dns.rdatatype.RdataType) -> Records:
        """Ask DNS; UnresolvedError where it gives no answer."""
        try:
            answer = await self._ready().resolve(name, record, search=True, lifetime=_LOOKUP_SECONDS)
        except dns.resolver.NXDOMAIN as error:
            return Records((), {}, _ttl(error.kwargs["responses"].values()))
        except dns.resolver.NoAnswer as error:
            return Records((), {}, _ttl([error.kwargs["response"]]))
        except (dns.exception.DNSException, OSError, ValueError) as error:
            # The system's resolvers may have changed: read which they are before the next look-up.
            self._resolver = None
            raise UnresolvedError(type(error).__name__, str(error)) from error
        return Records(
            tuple(answer), _addresses_beside(answer.response), float(answer.chaining_result.minimum_ttl)
        )

    async def addresses(self, name: dns.name.Name) -> Addresses:
        """Find the addresses of `name`, of both families; UnresolvedError where they are not known."""
        if here := _in_hosts_file(self._etc / "hosts", name):
            return Addresses(here, math.inf)
        answers = await asyncio.gather(*(self._family(name, family) for family in _FAMILIES))
        failures = [answer for answer in answers if isinstance(answer, UnresolvedError)]
        found = tuple(address for family in _FAMILIES for address in self._last.get((name, family), ()))
        # That there is nobody is believed only where both families say so.
        if len(failures) == len(_FAMILIES) or (failures and not found):
            raise failures[0]
        told = [answer for answer in answers if isinstance(answer, Records)]
        # That a family has none is asked again when the other is; it would often be every second.
        with_some = [records for records in told if records.values]
        return Addresses(found, min(records.ttl_seconds for records in with_some or told))

    def forget_all_but(self, names: Collection[dns.name.Name]) -> None:
        """Drop what is remembered of other names."""
        self._last = {key: told for key, told in self._last.items() if key[0] in names}

    async def _family(
        self, name: dns.name.Name, family: dns.rdatatype.RdataType
    ) -> Records | UnresolvedError:
        try:
            records = await self.records(name, family)
        except UnresolvedError as error:
            return error
        self._last[name, family] = _sorted(record.to_text() for record in records.values)
        return records

    def _ready(self) -> dns.asyncresolver.Resolver:
        if self._resolver is None:
            resolver = dns.asyncresolver.Resolver(str(self._etc / "resolv.conf"), not self._nameservers)
            if self._nameservers:
                resolver.nameservers = [
                    dns.nameserver.Do53Nameserver(address, port) for address, port in self._nameservers
                ]
            self._resolver = resolver
        return self._resolver


def _nameserver(text: str) -> tuple[str, int]:
    """Split ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT."""
    address, port = text, "53"
    if match := re.match(r"^\[(.*)\](?::(.*))?$", text):
        address, port = match[1], match[2] or "53"
    elif text.count(":") == 1:
        address, port = text.split(":")
    try:
        number = int(port)
        if not 0 < number < 65_536:
            raise ValueError(port)
        return str(ipaddress.ip_address(address)), number
    except ValueError as error:
        raise ValueError(f"not a nameserver, ADDRESS or ADDRESS:PORT: {text!r}") from error


def _ttl(responses: Iterable[dns.message.Message]) -> float:
    """How long it holds that there is nothing, by the zone's SOA."""
    held = [
        response.resolve_chaining().minimum_ttl
        for response in responses
        if isinstance(response, dns.message.QueryMessage)
    ]
    return float(min(held, default=0))


def _addresses_beside(response: dns.message.QueryMessage) -> dict[dns.name.Name, tuple[str, ...]]:
    """The addresses that an answer tells of the names in it."""
    told: dict[dns.name.Name, list[str]] = {}
    for records in response.additional:
        if records.rdtype in _FAMILIES and records.rdclass == dns.rdataclass.IN:
            told.setdefault(records.name, []).extend(record.to_text() for record in records)
    return {name: _sorted(addresses) for name, addresses in told.items()}


def _in_hosts_file(file: Path, name: dns.name.Name) -> tuple[str, ...]:
    """The addresses in the system's own file, read anew as it may be rewritten; none if unreadable."""
    wanted = name.to_text(omit_final_dot=True).lower()
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return ()
    fields = [line.partition("#")[0].lower().split() for line in lines]
    return _sorted(field[0] for field in fields if wanted in field[1:])


def _sorted(addresses: Iterable[str]) -> tuple[str, ...]:
    parsed = set()
    for address in addresses:
        try:
            parsed.add(ipaddress.ip_address(address))
        except ValueError:
            continue
    return tuple(str(address) for address in sorted(parsed, key=lambda one: (one.version, int(one))))
