"""HTTP/1.1 as plain bytes, read and cut by code that shares nothing with what is tested."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field

Field = tuple[str, str]

_NO_BODY = (204, 304)


class Cut(Exception):
    """A message ended before its end."""


@dataclass(slots=True)
class Message:
    """A request or an answer. `first` is its first line; `whole` says that its body ended as announced."""

    first: list[str]
    fields: list[Field]
    body: bytes = b""
    whole: bool = False
    interim: list[int] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.first[1])

    def of(self, name: str) -> list[str]:
        """Return the values of all fields of a name."""
        return [value for one, value in self.fields if one == name]

    def told(self, *without: str) -> Counter[Field]:
        """Return the fields in no order, `without` some."""
        return Counter(one for one in self.fields if one[0] not in without)


async def read_message(reader: asyncio.StreamReader, without_body: bool = False) -> Message | None:
    """Read a request or a final answer, None where nothing comes; Cut where its head is cut."""
    interim: list[int] = []
    while True:
        head = await _read_head(reader)
        if head is None:
            return None
        message = Message(*head, interim=interim)
        if not (message.first[0].startswith("HTTP/") and message.first[1].startswith("1")):
            break
        interim.append(message.status)
    answer = message.first[0].startswith("HTTP/")
    try:
        if without_body or (answer and message.status in _NO_BODY):
            message.whole = True
        elif message.of("transfer-encoding"):
            message.whole = await _read_chunks(reader, message)
        elif message.of("content-length"):
            (length,) = map(int, message.of("content-length"))
            message.whole = await _read_exactly(reader, message, length)
        elif answer:
            while piece := await reader.read(65536):
                message.body += piece
            message.whole = True
        else:
            message.whole = True
    except ConnectionError:
        message.whole = False
    return message


async def _read_head(reader: asyncio.StreamReader) -> tuple[list[str], list[Field]] | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise Cut from error
        return None
    except ConnectionError:
        return None
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    fields = []
    for line in lines:
        name, _, value = line.partition(":")
        fields.append((name.lower(), value.strip(" \t")))
    return first.split(" ", 2), fields


async def _read_chunks(reader: asyncio.StreamReader, message: Message) -> bool:
    while True:
        line = await reader.readline()
        if not line.endswith(b"\r\n"):
            return False
        size = int(line.partition(b";")[0], 16)
        if size == 0:
            while (line := await reader.readline()) != b"\r\n":
                if not line:
                    return False
            return True
        if not await _read_exactly(reader, message, size) or await reader.read(1) != b"\r":
            return False
        if await reader.read(1) != b"\n":
            return False


async def _read_exactly(reader: asyncio.StreamReader, message: Message, size: int) -> bool:
    try:
        message.body += await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        message.body += error.partial
        return False
    return True


def chunks(body: bytes, seed: int, trailers: bytes = b"") -> bytes:
    """Encode a body in chunks of random sizes, some with extensions, in any notation of sizes."""
    draw = random.Random(seed)
    coded = b""
    while body:
        size = draw.choice((1, 2, 5, 16, 300, 5000))
        piece, body = body[:size], body[size:]
        digits = draw.choice(("%x", "%X", "00%x")) % len(piece)
        coded += digits.encode() + draw.choice((b"", b"", b";a", b';a="b;c"')) + b"\r\n" + piece + b"\r\n"
    return coded + draw.choice((b"0", b"000", b"0;last")) + b"\r\n" + trailers + b"\r\n"


def pieces(data: bytes, seed: int | None) -> list[bytes]:
    """Cut bytes anywhere, some seeds very small; None leaves them whole."""
    if seed is None:
        return [data]
    draw = random.Random(seed)
    sizes = draw.choice(((1, 2, 3), (1, 7, 40, 400), (50, 1000, 9000), (1_000_000,)))
    cut: list[bytes] = []
    while data:
        # Many small writes take long: the rest of a longer text goes in larger ones.
        size = draw.choice(sizes) if len(cut) < 150 else 4096
        cut.append(data[:size])
        data = data[size:]
    return cut


async def write_pieces(writer: asyncio.StreamWriter, data: bytes, seed: int | None) -> None:
    """Send bytes cut anywhere, with pauses in between; ConnectionError where nobody takes them."""
    draw = random.Random(seed)
    for piece in pieces(data, seed):
        if writer.is_closing():
            raise ConnectionResetError
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(draw.choice((0, 0, 0, 0, 0, 0.001)))


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection by RST."""
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None and not writer.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
