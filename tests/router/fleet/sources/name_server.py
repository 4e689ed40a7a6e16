"""A small DNS server on 127.0.0.1: answers from a table, over UDP and TCP, and logs what it is asked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

# What fits into UDP without EDNS.
_UDP_BYTES = 512


class NameServer:
    """`records` holds a TTL and the records' texts by name and type; names it does not hold do not exist."""

    def __init__(self) -> None:
        self.address = ""
        self.records: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self.additional: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self.failing: set[str] = set()
        self.negative_ttl_seconds: int | None = None
        self.asked: list[tuple[str, str]] = []
        self.over_tcp = 0

    def count(self, record: str) -> int:
        """How often records of that type were asked for."""
        return sum(asked == record for _, asked in self.asked)

    def answer(self, wire: bytes) -> dns.message.Message:
        """Answer one query."""
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name, record = question.name.to_text().lower(), dns.rdatatype.to_text(question.rdtype)
        self.asked.append((name, record))
        answer = dns.message.make_response(query)
        if record in self.failing:
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif (name, record) in self.records:
            ttl_seconds, texts = self.records[name, record]
            answer.answer.append(dns.rrset.from_text_list(name, ttl_seconds, "IN", record, texts))
            for (other, kind), (seconds, values) in self.additional.items():
                answer.additional.append(dns.rrset.from_text_list(other, seconds, "IN", kind, values))
        else:
            if all(known != name for known, _ in self.records):
                answer.set_rcode(dns.rcode.NXDOMAIN)
            if self.negative_ttl_seconds is not None:
                soa = f"ns. admin. 1 3600 600 86400 {self.negative_ttl_seconds}"
                answer.authority.append(dns.rrset.from_text(".", 3600, "IN", "SOA", soa))
        return answer


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not all loops' transports are what their types say.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = self._server.answer(data)
        wire = answer.to_wire(max_size=65_535)
        if len(wire) > _UDP_BYTES:
            answer.answer.clear()
            answer.additional.clear()
            answer.flags |= dns.flags.TC
            wire = answer.to_wire()
        assert self._transport is not None
        self._transport.sendto(wire, addr)


@asynccontextmanager
async def name_server(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[NameServer]:
    """Run a server; its `address` is fit for the nameservers option."""
    server = NameServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(2), "big")
        wire = server.answer(await reader.readexactly(size)).to_wire(max_size=65_535)
        server.over_tcp += 1
        writer.write(len(wire).to_bytes(2, "big") + wire)
        await writer.drain()
        writer.close()

    # Both at one port; the one that TCP got may be taken for UDP, but hardly ten times in a row.
    for _ in range(10):
        listening = await asyncio.start_server(serve, host, port)
        bound = listening.sockets[0].getsockname()[1]
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            datagrams.bind((host, bound))
            break
        except OSError:
            datagrams.close()
            listening.close()
    datagrams.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Datagrams(server), sock=datagrams
    )
    server.address = f"{host}:{bound}"
    try:
        yield server
    finally:
        transport.close()
        listening.close()
        await listening.wait_closed()
