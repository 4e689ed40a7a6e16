"""Header fields of one message: as they came, for passing on, and by name, for reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Field = tuple[bytes, bytes]


class Headers(Mapping[str, str]):
    """Fields in the order they came, names in lower case. As a mapping: text, the first of equal names."""

    __slots__ = ("bytes", "fields")

    def __init__(self, fields: list[Field] | None = None) -> None:
        self.fields: list[Field] = []
        # The first of each name: what the hot path reads.
        self.bytes: dict[bytes, bytes] = {}
        for name, value in fields or ():
            self.add(name, value)

    def add(self, name: bytes, value: bytes) -> None:
        """Add a field at the end; its name in any case."""
        name = name.lower()
        self.fields.append((name, value))
        if name not in self.bytes:
            self.bytes[name] = value

    def count(self, name: bytes) -> int:
        """Return how often a name occurs."""
        return sum(one == name for one, _ in self.fields) if name in self.bytes else 0

    def __getitem__(self, name: str) -> str:
        return self.bytes[name.lower().encode("latin-1", "replace")].decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self.bytes)

    def __len__(self) -> int:
        return len(self.bytes)
