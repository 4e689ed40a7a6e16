"""The ring: consistent-hash order of replicas for a key, by their stable names."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence

from uhashring import HashRing
from xxhash import xxh3_64_intdigest


class Ring:
    """An immutable ring over replica names.

    Built over all members, dead ones included: a walk past a dead one is what the ring would be without it.
    uhashring places 160 virtual nodes a replica, whatever the order of `names` or the process's hash seed;
    fewer would spread load unevenly.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(sorted(set(names)))
        points = HashRing(
            list(self.names), hash_fn=lambda text: xxh3_64_intdigest(text.encode())
        ).get_points()
        # Sorted once here: a look-up is then one hash and one bisection.
        self._points = [point for point, _ in points]
        self._owners = [name for _, name in points]

    def walk(self, key: bytes) -> Iterator[str]:
        """Yield every name once, the key's home first."""
        return self.walk_from(self.point(key))

    def point(self, key: bytes) -> int:
        """Return where on the ring a key lies, by the number of the point that follows."""
        return bisect(self._points, xxh3_64_intdigest(key))

    def walk_from(self, start: int) -> Iterator[str]:
        """Yield every name once, from a point on."""
        owners = self._owners
        seen: set[str] = set()
        for place in range(start - len(owners), start):
            name = owners[place]
            if name not in seen:
                seen.add(name)
                yield name
                if len(seen) == len(self.names):
                    return


def tie_break(key: bytes, name: str) -> int:
    """Return the highest-random-weight score of `name` for `key`: a fair choice that all routers share."""
    return xxh3_64_intdigest(name.encode(), seed=xxh3_64_intdigest(key))
