"""Messages between a supervisor and its workers, and how they are framed on a stream socket."""

from __future__ import annotations

from enum import StrEnum

import msgspec

# A worker's metrics with a thousand replicas are about 2 MB.
MOST_BYTES = 64 * 1024 * 1024
_HEAD_BYTES = 4


class Kind(StrEnum):
    """What a message is. A worker tells the first four, a supervisor orders the last three; both ask."""

    STARTED = "started"
    # It cannot serve by these options, or cannot serve at all: the body says why.
    UNFIT = "unfit"
    FAILED = "failed"
    SNAPSHOT = "snapshot"
    ASK = "ask"
    ANSWER = "answer"
    DRAIN = "drain"
    INSIST = "insist"
    RELOAD = "reload"


class About(StrEnum):
    """What is asked for: the first of one worker, the others of all of them through their supervisor."""

    SNAPSHOT = "snapshot"
    METRICS = "metrics"
    FAMILIES = "families"
    EXPLANATION = "explanation"


class Message(msgspec.Struct, frozen=True, array_like=True):
    """One message. An answer has the number of what it answers, and an empty body for "I do not know"."""

    kind: Kind
    number: int = 0
    about: About | None = None
    body: bytes = b""


class BrokenError(ValueError):
    """What came is no message: the other side is not one of ours, or has lost its wits."""


def framed(message: Message) -> bytes:
    """Return a message as it goes over the socket: its length, 4 bytes big-endian, then msgpack."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_HEAD_BYTES, "big") + body


class Inbox:
    """Puts messages together from the pieces that a socket delivers."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._decode = msgspec.msgpack.Decoder(Message).decode

    def feed(self, piece: bytes) -> list[Message]:
        """Return the messages that are whole now; BrokenError if it cannot be one."""
        held = self._held
        held += piece
        whole: list[Message] = []
        at = 0
        while len(held) - at >= _HEAD_BYTES:
            begin = at + _HEAD_BYTES
            size = int.from_bytes(held[at:begin], "big")
            if size > MOST_BYTES:
                raise BrokenError(f"a message of {size} bytes")
            if len(held) < begin + size:
                break
            at = begin + size
            try:
                whole.append(self._decode(held[begin:at]))
            except msgspec.MsgspecError as error:
                raise BrokenError(str(error)) from error
        del held[:at]
        return whole
