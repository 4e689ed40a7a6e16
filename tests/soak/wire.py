"""A client's connection: raw requests out, one answer after the other in, told apart as whole or broken."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

_HEAD_BYTES = 64 * 1024


class Broken(Exception):
    """The connection ended before the answer did."""


@dataclass(frozen=True, slots=True)
class Head:
    """How an answer begins."""

    status: int
    fields: Mapping[str, str]


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self.kept = True

    @classmethod
    async def open(cls, port: int, slow: bool = False) -> Wire:
        """Connect; one that is `slow` has as little room for what it does not read as can be had."""
        sock = socket.socket()
        sock.setblocking(False)
        if slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        limit = 2048 if slow else _HEAD_BYTES
        reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
        return cls(reader, writer)

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)
        try:
            await self.writer.drain()
        except ConnectionError as error:
            raise Broken("while sending") from error

    async def head(self) -> Head:
        """Read how an answer begins; Broken where none does."""
        line, *lines = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        version, status, _ = line.split(" ", 2)
        assert version == "HTTP/1.1", line
        fields = {}
        for one in lines:
            name, value = one.split(": ", 1)
            assert name not in fields or name.startswith("x-"), (name, lines)
            fields[name.lower()] = value
        self.kept = fields.get("connection", "").lower() != "close"
        return Head(int(status), fields)

    async def body(self, head: Head) -> AsyncIterator[bytes]:
        """Yield the body as it comes; Broken where it ends early."""
        length = head.fields.get("content-length")
        if head.fields.get("transfer-encoding") == "chunked":
            assert length is None
            while size := int(await self._until(b"\r\n"), 16):
                async for piece in self._exactly(size):
                    yield piece
                assert await self._until(b"\r\n") == b"\r\n"
            assert await self._until(b"\r\n") == b"\r\n"
        else:
            assert length is not None, head
            async for piece in self._exactly(int(length)):
                yield piece

    async def ended(self, seconds: float) -> bool:
        """Say whether the other side ends the connection within so many seconds, sending nothing more."""
        try:
            async with asyncio.timeout(seconds):
                return await self._reader.read(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def abort(self) -> None:
        """Reset it."""
        self.writer.transport.abort()

    def close(self) -> None:
        """End it."""
        self.writer.close()

    async def _until(self, end: bytes) -> bytes:
        try:
            return await self._reader.readuntil(end)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Broken(f"within {getattr(error, 'partial', b'')[:80]!r}") from error

    async def _exactly(self, count: int) -> AsyncIterator[bytes]:
        while count:
            try:
                piece = await self._reader.read(min(count, 65_536))
            except ConnectionError as error:
                raise Broken("reset") from error
            if not piece:
                raise Broken("closed")
            count -= len(piece)
            yield piece
