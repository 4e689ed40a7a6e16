"""The ring: consistent-hash order of replicas for a key, by their stable names."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence

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
        owners = self._owners
        start = bisect(self._points, xxh3_64_intdigest(key))
        seen: set[str] = set()
        for place in range(start - len(owners), start):
            name = owners[place]
            if name not in seen:
                seen.add(name)
                yield name
                if len(seen) == len(self.names):
                    return

    def first_two(self, key: bytes, places: Mapping[str, int]) -> tuple[int, int]:
        """Return the places of the first two on the walk that have one; -1 where there is none."""
        owners = self._owners
        start = bisect(self._points, xxh3_64_intdigest(key))
        first = -1
        for point in range(start - len(owners), start):
            place = places.get(owners[point], -1)
            if place not in (-1, first):
                if first >= 0:
                    return first, place
                first = place
        return first, -1


def tie_break(key: bytes, name: str) -> int:
    """Return the highest-random-weight score of `name` for `key`: a fair choice that all routers share."""
    return xxh3_64_intdigest(name.encode(), seed=xxh3_64_intdigest(key))
