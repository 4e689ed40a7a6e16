"""Spaces of names: what the model computed, and what the weights of each adapter did while they last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from router.chain.namer import ChainNamer
from router.events.decode import BlockStored

_MAX_ADAPTERS = 4096


class Spaces:
    """The names held that digests count. All that has no adapter is in space 0."""

    def __init__(self, namer: ChainNamer, namer_of: Callable[[str], ChainNamer | None]) -> None:
        """`namer` names the model's prompts; `namer_of` tells who names those of an adapter."""
        # Grows with each change of the names.
        self.version = 0
        self._namer = namer
        self._namer_of = namer_of
        # Behind each name is how many engine blocks end it.
        self._names: dict[int, dict[bytes, int]] = {0: {}}
        # The revision that is loaded of each adapter, and its space.
        self._adapters: dict[str, tuple[str, int]] = {}
        self._last = 0

    def names(self) -> list[bytes]:
        """Return all names."""
        held: list[bytes] = []
        for names in self._names.values():
            held += names
        return held

    def clear(self) -> tuple[dict[Any, Any], ...]:
        """Forget all; return the tables, which may take long to free."""
        waste = tuple(self._names.values())
        self._names = {0: {}}
        self._adapters.clear()
        self.version += 1
        return waste

    def hold(self, names: Sequence[bytes], space: int) -> None:
        """Count a block that ends each of the names; of a space that is gone they are nothing."""
        held = self._names.get(space)
        if held is None:
            return
        for name in names:
            count = held.get(name, 0)
            held[name] = count + 1
            if not count:
                self.version += 1

    def release(self, names: Sequence[bytes], space: int) -> None:
        """Take back what was held."""
        held = self._names.get(space)
        if held is None:
            return
        for name in names:
            if held[name] > 1:
                held[name] -= 1
            else:
                del held[name]
                self.version += 1

    def of(self, event: BlockStored) -> int | None:
        """Return the space of the event's names; None where prompts of its adapter are named otherwise.

        An adapter that was loaded anew under its name has other weights: what the old ones computed is gone.
        """
        if event.adapter is None:
            return 0
        known = self._adapters.get(event.adapter)
        if known is not None and known[0] == event.revision:
            return known[1]
        if event.parent is not None and known is not None:
            # Paths are told of by some events only: a prompt's first block says whose it is.
            return known[1]
        namer = self._namer_of(event.adapter)
        if namer is None or namer.identity != self._namer.identity:
            return None
        if known is not None:
            self._names.pop(known[1], None)
            self.version += 1
        elif len(self._adapters) >= _MAX_ADAPTERS:
            return None
        self._last += 1
        self._adapters[event.adapter] = (event.revision, self._last)
        self._names[self._last] = {}
        return self._last
