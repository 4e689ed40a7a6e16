"""Segments of prompts seen lately, as a tree: a conversation's next turn finds all that was known of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from sys import getsizeof
from threading import Lock

# What an entry takes beside its text, data and names: the object, its place in the order, its children.
_ENTRY_BYTES = 600

Piece = str | bytes


class Segment:
    """One piece of a prompt, and the chain's state behind it.

    `piece` is its text (or data); `data` what is named of it, `names` those of the blocks that it completed,
    side by side. Behind it `end_bytes` of data and `end_blocks` are done, the last name is `parent_name`, and
    `remainder` fills no block yet.
    """

    __slots__ = (
        "children",
        "data",
        "end_blocks",
        "end_bytes",
        "names",
        "parent",
        "parent_name",
        "piece",
        "remainder",
        "size",
    )

    def __init__(
        self,
        piece: Piece,
        data: bytes = b"",
        names: bytes = b"",
        parent_name: bytes = b"",
        remainder: bytes = b"",
        end_bytes: int = 0,
        end_blocks: int = 0,
    ) -> None:
        self.piece = piece
        self.data = data
        self.names = names
        self.parent_name = parent_name
        self.remainder = remainder
        self.end_bytes = end_bytes
        self.end_blocks = end_blocks
        self.size = getsizeof(piece) + len(data) + len(names) + len(remainder) + _ENTRY_BYTES
        # Set and read by the tree alone.
        self.children: dict[Piece, Segment] = {}
        self.parent: Segment | None = None


class SegmentTree:
    """Remembers `capacity_bytes` of segments, each by all that went before it. Thread-safe.

    Pieces are compared, not their hashes: no prompt can be made that is taken for another. Whoever asks for a
    segment has asked for those before it, so the least recently used one is a leaf always.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._held_bytes = 0
        self._top = Segment(b"")
        # Ascending by last use, a segment behind its children.
        self._order: OrderedDict[Segment, None] = OrderedDict()
        self._lock = Lock()

    @property
    def held_bytes(self) -> int:
        """About what is held in memory."""
        return self._held_bytes

    def find(self, pieces: Sequence[Piece]) -> list[Segment]:
        """Return the segments that are known of a prompt's pieces, from the first on."""
        path = []
        with self._lock:
            segment = self._top
            for piece in pieces:
                child = segment.children.get(piece)
                if child is None:
                    break
                path.append(child)
                segment = child
            self._touch(path)
        return path

    def add(self, path: list[Segment], new: Sequence[Segment]) -> None:
        """Remember segments that follow a path that was found (empty: from a prompt's start)."""
        with self._lock:
            parent = path[-1] if path else self._top
            if path and parent not in self._order:
                # Forgotten since it was found.
                return
            whole = list(path)
            for segment in new:
                known = parent.children.get(segment.piece)
                if known is None:
                    known = parent.children[segment.piece] = segment
                    segment.parent = parent
                    self._order[segment] = None
                    self._held_bytes += segment.size
                whole.append(known)
                parent = known
            self._touch(whole)
            while self._held_bytes > self._capacity_bytes:
                self._forget_oldest()

    def _touch(self, path: list[Segment]) -> None:
        for segment in reversed(path):
            self._order.move_to_end(segment)

    def _forget_oldest(self) -> None:
        segment, _ = self._order.popitem(last=False)
        assert segment.parent is not None
        assert not segment.children
        del segment.parent.children[segment.piece]
        self._held_bytes -= segment.size
