"""Server-sent events: cuts a byte stream into whole events without changing a byte of them."""

from __future__ import annotations

import re

# A blank line ends an event; lines end in LF, CRLF or CR.
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n")
_LINE_END = re.compile(rb"\r\n|\n|\r")

DONE = b"data: [DONE]\n\n"


class EventCutter:
    """Gathers chunks, however cut, and gives back whole events, each with the blank line that ends it.

    An event longer than `limit_bytes` is given back in pieces, so that memory stays bounded.
    """

    def __init__(self, limit_bytes: int = 4 * 1024 * 1024) -> None:
        # Of an event that goes on: it may come in many small chunks.
        self._held = bytearray()
        self._limit = limit_bytes

    @property
    def empty(self) -> bool:
        """Whether no event has begun."""
        return not self._held

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take a chunk; return the events it completes."""
        held, data, scanned = self._held, chunk, 0
        if not held:
            if data.endswith(b"\n\n") and data.find(b"\n\n") == len(data) - 2 and b"\r" not in data:
                # One whole event: the usual case.
                return [data]
        else:
            # What is held has no end, but for one that begins in its last bytes.
            scanned = max(0, len(held) - 3)
            held += chunk
            if len(held) <= self._limit and _EVENT_END.search(held, scanned) is None:
                return []
            data = bytes(held)
            self._held = bytearray()
        events = []
        start = 0
        for match in _EVENT_END.finditer(data, scanned):
            # A CR at the very end may be the first half of a CRLF still to come.
            if match.end() == len(data) and data.endswith(b"\r"):
                break
            events.append(data[start : match.end()])
            start = match.end()
        if len(data) - start > self._limit:
            events.append(data[start:])
        elif start < len(data):
            self._held += data[start:]
        return events

    def rest(self) -> bytes:
        """Return what is left at the end of the stream: an event without its blank line, or nothing."""
        held, self._held = self._held, bytearray()
        return bytes(held)


def event_data(event: bytes) -> bytes | None:
    """Return the `data` of one event, its lines joined by LF, or None for a comment or an event without."""
    lines = []
    for line in _LINE_END.split(event):
        if line.startswith(b"data"):
            name, _, value = line.partition(b":")
            if name == b"data":
                lines.append(value.removeprefix(b" "))
    return b"\n".join(lines) if lines else None


def encode_event(data: bytes) -> bytes:
    """Return a single-line event."""
    return b"data: " + data + b"\n\n"
