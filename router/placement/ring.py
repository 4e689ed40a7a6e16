"""The ring: consistent-hash order of replicas for a key, by their stable names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from uhashring import HashRing
from xxhash import xxh3_64_intdigest


class Ring:
    """An immutable ring over replica names.

    Built over all members, dead ones included: a walk past a dead one is what the ring would be without it.
    uhashring places 160 virtual nodes a replica by MD5, whatever the order of `names` or the process's hash
    seed; fewer would spread load unevenly.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(sorted(set(names)))
        self._ring = HashRing(list(self.names))

    def walk(self, key: bytes) -> Iterator[str]:
        """Yield every name once, the key's home first."""
        # Keys are hashes; their hex digits are safe where arbitrary text (a lone surrogate) is not.
        for node in self._ring.range(key.hex()):
            yield node["nodename"]


def tie_break(key: bytes, name: str) -> int:
    """Return the highest-random-weight score of `name` for `key`: a fair choice that all routers share."""
    return xxh3_64_intdigest(name.encode(), seed=xxh3_64_intdigest(key))
