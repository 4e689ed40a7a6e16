"""The names of one prompt's blocks, side by side in one run of bytes: a long history is joined by a copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import overload


class Names(Sequence[bytes]):
    """Names of `width` bytes each. An object for each would cost more than hashing its block did."""

    __slots__ = ("packed", "width")

    def __init__(self, packed: bytes, width: int) -> None:
        self.packed = packed
        self.width = width

    def __len__(self) -> int:
        return len(self.packed) // self.width

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        width = self.width
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return Names(self.packed[start * width : stop * width], width)
            return list(self)[index]
        start = (index if index >= 0 else index + len(self)) * width
        if not 0 <= start < len(self.packed):
            raise IndexError("no such block")
        return self.packed[start : start + width]

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(cutter(self.width).iter_unpack(self.packed))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Names):
            return self.packed == other.packed and self.width == other.width
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"Names({list(self)!r})"


@lru_cache(maxsize=64)
def cutter(width: int) -> Struct:
    """Return what cuts a run of bytes into pieces of `width` bytes, each in a tuple of its own."""
    return Struct(f"{width}s")
