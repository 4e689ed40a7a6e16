"""The course of a stream: whether a message is the next, was seen, leaves a gap, or begins another life."""

from __future__ import annotations

from array import array
from enum import Enum

from xxhash import xxh3_64_intdigest

# How far back messages are told apart by what they hold; as many as may queue up while a replay runs.
WINDOW = 4096


class Arrival(Enum):
    """What a message is to those before it."""

    NEXT = "next"
    SEEN = "seen"
    GAP = "gap"
    RESTART = "restart"


class Course:
    """Follows the numbers of one publisher, which count up from 0 in each of its lives.

    A number that was passed is the same message again, if it holds the same, else one of another life: each
    message holds its time, so that no two are alike.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self._seen = array("Q", bytes(8 * WINDOW))

    def place(self, number: int, payload: bytes) -> Arrival:
        """Say what a message is. The first of all is the next one, whatever its number."""
        if self.last is None or number == self.last + 1:
            return Arrival.NEXT
        if number > self.last:
            return Arrival.GAP
        recent = self.last - number < WINDOW
        if recent and self._seen[number % WINDOW] == xxh3_64_intdigest(payload):
            return Arrival.SEEN
        return Arrival.RESTART

    def passed(self, number: int, payload: bytes) -> None:
        """Note that the next message was taken."""
        self.last = number
        self._seen[number % WINDOW] = xxh3_64_intdigest(payload)

    def forget(self) -> None:
        """Begin anew."""
        self.last = None
        self._seen = array("Q", bytes(8 * WINDOW))
