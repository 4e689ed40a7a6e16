"""The digest: a Bloom filter of the block names a replica holds, at set depths only."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

# Every block of the first 1,024 tokens (of 16), where chats part; then every 512 tokens, as long prompts have
# thousands of blocks and are rarely told apart by less; beyond 131,072 tokens ever sparser, so that no prompt
# takes more than some hundred names.
DENSE_BLOCKS = 64
STRIDE_BLOCKS = 32
_SPARSE_FROM_BLOCKS = 8192
BITS_PER_NAME = 10
PROBES = 7
MAX_DIGEST_BYTES = 4 * 1024 * 1024

_MASK = (1 << 64) - 1


def is_boundary(depth: int) -> bool:
    """Say whether the block that ends `depth` blocks into a prompt (1, 2, ...) belongs in a digest."""
    return depth <= DENSE_BLOCKS or depth % _stride(depth) == 0


@lru_cache(maxsize=1024)
def boundaries(block_count: int) -> Sequence[int]:
    """Return the depths, shallowest first, at which a chain of `block_count` blocks meets a digest."""
    depths = list(range(1, min(block_count, DENSE_BLOCKS) + 1))
    depth = DENSE_BLOCKS
    while (depth := depth + _stride(depth + 1)) <= block_count:
        depths.append(depth)
    return tuple(depths)


def _stride(depth: int) -> int:
    """Return the blocks between boundaries around `depth`: doubled with each doubling of the depth."""
    return STRIDE_BLOCKS << ((depth - 1) // _SPARSE_FROM_BLOCKS).bit_length()


@dataclass(frozen=True, slots=True)
class Digest:
    """What a replica holds. `identity` names the chain, `epoch` the life of its cache.

    False positives come at about 0.8 %; a name that is held is always found.
    """

    identity: str
    epoch: str
    names: int
    bits: bytes

    @classmethod
    def of(cls, names: Iterable[bytes], identity: str, epoch: str) -> Digest:
        """Build the digest of `names` (each at a boundary)."""
        held = list(names)
        size = max(8, -(-len(held) * BITS_PER_NAME // 8))
        bits = bytearray(size)
        for name in held:
            step, position, width = _hash(name, size)
            for _ in range(PROBES):
                bits[position >> 3] |= 1 << (position & 7)
                position = (position + step) % width
        return cls(identity, epoch, len(held), bytes(bits))

    def __contains__(self, name: bytes) -> bool:
        bits = self.bits
        step, position, width = _hash(name, len(bits))
        for _ in range(PROBES):
            if not bits[position >> 3] >> (position & 7) & 1:
                return False
            position = (position + step) % width
        return True

    def deepest(self, names: Sequence[bytes], depths: Sequence[int]) -> int:
        """Return the greatest of `depths` (ascending) whose name is held, or 0.

        A held block's parent is held too, so the depths are searched by halves.
        """
        low, high = 0, len(depths)
        while low < high:
            middle = (low + high) // 2
            if names[depths[middle] - 1] in self:
                low = middle + 1
            else:
                high = middle
        return depths[low - 1] if low else 0

    def to_json(self) -> dict[str, object]:
        """Return the wire form."""
        return {
            "identity": self.identity,
            "epoch": self.epoch,
            "names": self.names,
            "probes": PROBES,
            "dense_blocks": DENSE_BLOCKS,
            "stride_blocks": STRIDE_BLOCKS,
            "bits": b64encode(self.bits).decode(),
        }

    @classmethod
    def from_json(cls, body: object) -> Digest:
        """Read the wire form; ValueError if it is not one that this version reads alike."""
        if not isinstance(body, dict):
            raise ValueError("a digest is a JSON object")
        layout = (body.get("probes"), body.get("dense_blocks"), body.get("stride_blocks"))
        if layout != (PROBES, DENSE_BLOCKS, STRIDE_BLOCKS):
            raise ValueError(f"digest layout {layout} is not {(PROBES, DENSE_BLOCKS, STRIDE_BLOCKS)}")
        identity, epoch, names, bits = (body.get(key) for key in ("identity", "epoch", "names", "bits"))
        if not (isinstance(identity, str) and isinstance(epoch, str) and isinstance(bits, str)):
            raise ValueError("a digest has text fields identity, epoch and bits")
        if not isinstance(names, int) or len(bits) > MAX_DIGEST_BYTES * 4 // 3 + 4:
            raise ValueError("a digest counts its names and is at most 4 MiB")
        decoded = b64decode(bits, validate=True)
        if not decoded:
            raise ValueError("a digest has bits")
        return cls(identity, epoch, names, decoded)


def _hash(name: bytes, size_bytes: int) -> tuple[int, int, int]:
    """Return (step, first position, width in bits). Names are hashes already: two of their halves suffice."""
    width = size_bytes * 8
    first = int.from_bytes(name[:8], "little")
    # A short name has no second half: spread its bits by an odd constant (2**64 over the golden ratio).
    second = int.from_bytes(name[8:16], "little") or first * 0x9E3779B97F4A7C15 & _MASK
    return second % (width - 1) + 1, first % width, width
