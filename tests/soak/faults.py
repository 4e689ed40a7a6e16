"""The faults of the soak that befall single requests on their way to a replica, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Kind(StrEnum):
    """What happens to a request, or to its answer."""

    NONE = "none"
    # The connection ends as the request arrives, as where an idle one was just given up.
    CLOSED = "closed"
    # The replica has it, and the connection ends before a byte of the answer.
    VANISHED = "vanished"
    # Answers that come from what stands before the replica.
    SAID_500 = "said 500"
    SAID_503 = "said 503"
    SAID_503_RAN = "said 503, ran"
    SAID_429 = "said 429"
    GARBLED = "garbled"
    RESET = "reset"
    ENDED = "ended"
    BAD_CHUNK = "bad chunk"
    # All of the answer comes, in its own time.
    DELAYED = "delayed"
    STALLED = "stalled"
    THROTTLED = "throttled"
    SPLIT = "split"


# After these a client may see an error.
HARMFUL = frozenset(Kind) - {Kind.NONE, Kind.DELAYED, Kind.STALLED, Kind.THROTTLED, Kind.SPLIT}
# These are answers in themselves: no replica sees the request.
SAID = {Kind.SAID_500: 500, Kind.SAID_503: 503, Kind.SAID_503_RAN: 503, Kind.SAID_429: 429}

_WEIGHTS = {
    Kind.CLOSED: 3,
    Kind.VANISHED: 3,
    Kind.SAID_500: 1,
    Kind.SAID_503: 2,
    Kind.SAID_503_RAN: 1,
    Kind.SAID_429: 2,
    Kind.GARBLED: 1,
    Kind.RESET: 3,
    Kind.ENDED: 3,
    Kind.BAD_CHUNK: 1,
    Kind.DELAYED: 3,
    Kind.STALLED: 3,
    Kind.THROTTLED: 3,
    Kind.SPLIT: 4,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, behind so many bytes of the answer, for so many seconds, in one of several variants."""

    kind: Kind = Kind.NONE
    bytes: int = 0
    seconds: float = 0.0
    variant: int = 0


NO_FAULT = Fault()


def draw(random: Random, share: float) -> Fault:
    """Draw what befalls a request: something, for a `share` of them."""
    if random.random() >= share:
        return NO_FAULT
    (kind,) = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
    return Fault(kind, int(random.expovariate(1 / 4000)), random.uniform(0.05, 1.2), random.randrange(4))


def garbled(head: bytes, variant: int) -> bytes:
    """Return what begins an answer so that nobody can take it for one."""
    line, _, rest = head.partition(b"\r\n")
    match variant:
        case 0:
            return head.replace(b"HTTP/1.1", b"HTXP/1.1", 1)
        case 1:
            return line + b"\r\nx-torn: a\0b\r\n" + rest
        case 2:
            return line + b"\r\nno colon here\r\n" + rest
    return line + b"\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n" + rest
