"""The algorithms that name blocks: `sha256`, and `xxh3` for routing only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from struct import pack

from xxhash import xxh3_64_intdigest

from router.chain.names import Names, cutter

NameBlocks = Callable[[bytes, bytes, int, Mapping[int, bytes], int], Names]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to name blocks.

    `name_blocks(parent, data, block_bytes, keys, first)` names every full block of `data` below `parent`;
    `keys` holds encoded keys by block index, the first block of `data` having index `first`. Names are
    `name_bytes` long. `collision_resistant` says whether equal names may be trusted to mean equal tokens, and
    `outruns_memory` whether naming bytes anew takes less than finding out that they were named before.
    """

    label: str
    name_bytes: int
    collision_resistant: bool
    outruns_memory: bool
    name_blocks: NameBlocks

    def root(self, seed: str) -> bytes:
        """Derive the parent of first blocks from the configured seed, apart for every algorithm."""
        material = b"kvring chain root v1\0" + self.label.encode() + b"\0" + seed.encode()
        return sha256(material).digest()[: self.name_bytes]


def _sha256_blocks(
    parent: bytes, data: bytes, block_bytes: int, keys: Mapping[int, bytes], first: int
) -> Names:
    # Unambiguous without separators: the parent and the tokens have fixed lengths, the keys are the rest.
    names: list[bytes] = []
    cut = cutter(block_bytes).iter_unpack
    for run, key in _runs(data, block_bytes, keys, first):
        if key is None:
            names += [parent := sha256(parent + block).digest() for (block,) in cut(run)]
        else:
            parent = sha256(b"".join((parent, run, key))).digest()
            names.append(parent)
    return Names(b"".join(names), 32)


def _xxh3_blocks(
    parent: bytes, data: bytes, block_bytes: int, keys: Mapping[int, bytes], first: int
) -> Names:
    names: list[int] = []
    seed = int.from_bytes(parent, "little")
    cut = cutter(block_bytes).iter_unpack
    for run, key in _runs(data, block_bytes, keys, first):
        if key is None:
            names += [seed := xxh3_64_intdigest(block, seed) for (block,) in cut(run)]
        else:
            seed = xxh3_64_intdigest(b"".join((run, key)), seed)
            names.append(seed)
    return Names(pack(f"<{len(names)}Q", *names), 8)


def _runs(
    data: bytes, block_bytes: int, keys: Mapping[int, bytes], first: int
) -> list[tuple[memoryview, bytes | None]]:
    """Return the full blocks in order: runs of those without keys, and each that has keys, with them."""
    runs: list[tuple[memoryview, bytes | None]] = []
    view = memoryview(data)
    end = len(data) // block_bytes * block_bytes
    at = 0
    for index in sorted(keys):
        offset = (index - first) * block_bytes
        if not 0 <= offset < end:
            continue
        if at < offset:
            runs.append((view[at:offset], None))
        at = offset + block_bytes
        runs.append((view[offset:at], keys[index]))
    if at < end:
        runs.append((view[at:end], None))
    return runs


ALGORITHMS: Mapping[str, Algorithm] = {
    "sha256": Algorithm("sha256", 32, True, False, _sha256_blocks),
    "xxh3": Algorithm("xxh3", 8, False, True, _xxh3_blocks),
}
