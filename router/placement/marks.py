"""A chain's marks: the few of its names by which caches are asked and prompts remembered, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from sys import byteorder

import numpy as np
import numpy.typing as npt

from router.chain.chain import Chain
from router.chain.digest import boundaries, name_halves, probes_of
from router.chain.names import Names

# Lengths of chains whose layouts are kept.
_MOST_LAYOUTS = 1024


class Marks:
    """A chain's boundaries as digests see them: `depths` in blocks, ascending, and `first`, 64 bits of each.

    `blocks` is how many names there are in all.

    Numbers of Python: most prompts have few, and they are read one by one. They are this process's own; what
    filters are asked by is made where one is asked.
    """

    __slots__ = ("_names", "_step", "_words", "blocks", "depths", "first")

    depths: Sequence[int]
    first: Sequence[int]

    def __init__(self, chain: Chain) -> None:
        """Read the marks of a chain, whose names are all of one length, a multiple of 8 bytes."""
        names = self._names = chain.names
        # A chain of the router's lies in one run of bytes; one that somebody made up may be any sequence.
        self._words: memoryview | None = None
        if isinstance(names, Names):
            words = self._words = memoryview(names.packed).cast("Q")
            self._step = names.width >> 3
            self.blocks, self.depths, read = _layout(len(words), self._step, chain.block_tokens)
            self.first = read(words)
        else:
            self._step, self.blocks = 1, len(names)
            self.depths = boundaries(len(names), chain.block_tokens)
            self.first = self.names(self.depths)

    def probes(self) -> npt.NDArray[np.uint64]:
        """Return by what filters are asked: probes by names."""
        names = self._names
        if isinstance(names, Names):
            packed, width = names.packed, names.width
            return probes_of(
                *name_halves([packed[(depth - 1) * width : depth * width] for depth in self.depths])
            )
        return probes_of(*name_halves([names[depth - 1] for depth in self.depths]))

    def names(self, depths: Sequence[int]) -> Sequence[int]:
        """Return 64 bits of the name that ends each of `depths` blocks."""
        words, step = self._words, self._step
        if words is None:
            return [int.from_bytes(self._names[depth - 1][:8], byteorder) for depth in depths]
        return [words[(depth - 1) * step] for depth in depths]

    def between(self, begin: int, end: int) -> Sequence[int]:
        """Return 64 bits of each name behind the first `begin` blocks, up to `end`."""
        if self._words is None:
            return self.names(range(begin + 1, end + 1))
        return self._words[begin * self._step : end * self._step : self._step].tolist()


NO_MARKS = Marks(Chain("", (), b"", 1, 1, 0))


@lru_cache(maxsize=_MOST_LAYOUTS)
def _layout(
    word_count: int, step: int, block_tokens: int
) -> tuple[int, Sequence[int], Callable[[memoryview], Sequence[int]]]:
    """Return how many names so many words are, `step` each; the depths of boundaries; what reads those."""
    blocks = word_count // step
    depths = boundaries(blocks, block_tokens)
    places = [(depth - 1) * step for depth in depths]
    if len(places) < 2:
        # Of one place alone, itemgetter returns what stands there.
        return blocks, depths, lambda words: tuple([words[place] for place in places])
    return blocks, depths, itemgetter(*places)
