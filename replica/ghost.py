"""The ghost: names that the pool held once and evicted, so that a miss tells evicted from never seen."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

# Names remembered for each block of the pool: what left so many cache-fulls ago may as well count as new.
_CACHES = 4
_MOST_ENTRIES = 1 << 20


class Ghost:
    """A table of 8 bytes a name in which a newer name may overwrite an older one, at random.

    About four names for each block of the pool, at most 8 MiB. A name that was never noted is found with a
    chance of 2**-64 times the table's size, so never.
    """

    def __init__(self, block_count: int) -> None:
        entries = min(_MOST_ENTRIES, max(1024, _CACHES * block_count))
        size = 1 << (entries - 1).bit_length()
        self._mask = size - 1
        self._table = array("Q", bytes(8 * size))
        # The same memory: one by one it is written fastest as an array, many at once it is read fastest so.
        self._view = np.frombuffer(self._table, dtype=np.uint64)

    def note(self, name: bytes) -> None:
        """Remember a name that the pool forgets."""
        mark = _mark(name)
        self._table[mark & self._mask] = mark

    def depth(self, names: Sequence[bytes], found: int, limit: int) -> int:
        """Return the greatest depth, in blocks, up to `limit`, that was held once; `found` if none beyond it.

        `found` leading blocks are held now. A name stands for a whole prefix, so the deepest one tells all.
        Names are of one length, a multiple of 8 bytes.
        """
        beyond = names[found:limit]
        if not beyond:
            return found
        marks = np.frombuffer(b"".join(beyond), dtype="<u8").reshape(len(beyond), -1)[:, 0]
        marks = np.maximum(marks, 1)
        held = np.flatnonzero(self._view[(marks & np.uint64(self._mask)).astype(np.int64)] == marks)
        return found + int(held[-1]) + 1 if len(held) else found

    def clear(self) -> None:
        """Forget everything, as the pool does when it is reset."""
        memoryview(self._table).cast("B")[:] = bytes(8 * len(self._table))


def _mark(name: bytes) -> int:
    # Names are hashes already. Never 0, which stands for an empty place.
    return int.from_bytes(name[:8], "little") or 1
