"""The algorithms that name blocks: `sha256`, and `xxh3` for routing only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from xxhash import xxh3_64_intdigest

NameBlocks = Callable[[bytes, bytes, int, Mapping[int, bytes], int], list[bytes]]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to name blocks.

    `name_blocks(parent, data, block_bytes, keys, first)` names every full block of `data` below `parent`;
    `keys` holds encoded keys by block index, the first block of `data` having index `first`. Names are
    `name_bytes` long. `collision_resistant` says whether equal names may be trusted to mean equal tokens.
    """

    label: str
    name_bytes: int
    collision_resistant: bool
    name_blocks: NameBlocks

    def root(self, seed: str) -> bytes:
        """Derive the parent of first blocks from the configured seed, apart for every algorithm."""
        material = b"kvring chain root v1\0" + self.label.encode() + b"\0" + seed.encode()
        return sha256(material).digest()[: self.name_bytes]


def _sha256_blocks(
    parent: bytes, data: bytes, block_bytes: int, keys: Mapping[int, bytes], first: int
) -> list[bytes]:
    # Unambiguous without separators: the parent and the tokens have fixed lengths, the keys are the rest.
    names = []
    end = len(data) - len(data) % block_bytes
    for index, offset in enumerate(range(0, end, block_bytes), first):
        block = parent + data[offset : offset + block_bytes]
        if keys and index in keys:
            block += keys[index]
        parent = sha256(block).digest()
        names.append(parent)
    return names


def _xxh3_blocks(
    parent: bytes, data: bytes, block_bytes: int, keys: Mapping[int, bytes], first: int
) -> list[bytes]:
    names = []
    end = len(data) - len(data) % block_bytes
    seed = int.from_bytes(parent, "little")
    for index, offset in enumerate(range(0, end, block_bytes), first):
        block = data[offset : offset + block_bytes]
        if keys and index in keys:
            block += keys[index]
        seed = xxh3_64_intdigest(block, seed)
        names.append(seed.to_bytes(8, "little"))
    return names


ALGORITHMS: Mapping[str, Algorithm] = {
    "sha256": Algorithm("sha256", 32, True, _sha256_blocks),
    "xxh3": Algorithm("xxh3", 8, False, _xxh3_blocks),
}
