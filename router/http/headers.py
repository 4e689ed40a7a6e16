"""Header fields of one message: as they came, for passing on, and by name, for reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Field = tuple[bytes, bytes]

_NONE: frozenset[bytes] = frozenset()


class Headers(Mapping[str, str]):
    """Fields in the order they came, names in lower case. As a mapping: text, the first of equal names."""

    __slots__ = ("bytes", "fields", "repeated")

    def __init__(self, fields: list[Field] | None = None) -> None:
        self.fields: list[Field] = []
        # The first of each name: what the hot path reads.
        self.bytes: dict[bytes, bytes] = {}
        # Names that occur more than once.
        self.repeated: frozenset[bytes] | set[bytes] = _NONE
        for name, value in fields or ():
            self.add(name, value)

    def add(self, name: bytes, value: bytes) -> None:
        """Add a field at the end; its name in any case, its value with whitespace behind it."""
        name = name.lower()
        value = value.rstrip()
        self.fields.append((name, value))
        if name not in self.bytes:
            self.bytes[name] = value
        elif isinstance(self.repeated, set):
            self.repeated.add(name)
        else:
            self.repeated = {name}

    def __getitem__(self, name: str) -> str:
        return self.bytes[name.lower().encode("latin-1", "replace")].decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower().encode("latin-1", "replace") in self.bytes

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self.bytes)

    def __len__(self) -> int:
        return len(self.bytes)
