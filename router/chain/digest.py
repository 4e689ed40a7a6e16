"""The digest: a Bloom filter of the block names a replica holds, at set depths only."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

# Every block of the first 1,024 tokens, where chats part; then every 512 tokens, as long prompts have
# thousands of blocks and are rarely told apart by less; beyond 131,072 tokens ever sparser, so that no prompt
# takes more than some hundred names.
DENSE_TOKENS = 1024
STRIDE_TOKENS = 512
_SPARSE_FROM_TOKENS = 131_072
LEAST_BITS_PER_NAME = 10
PROBES = 7
_LEAST_BYTES = 64
# Some hundred thousand names: the caches of the largest replicas. Laid side by side, filters must stay small.
MAX_DIGEST_BYTES = 128 * 1024


_PROBE = np.arange(PROBES, dtype=np.uint64)[:, None]


def is_boundary(depth: int, block_tokens: int) -> bool:
    """Say whether the block that ends `depth` blocks into a prompt (1, 2, ...) belongs in a digest."""
    return depth * block_tokens <= DENSE_TOKENS or depth % _stride(depth, block_tokens) == 0


@lru_cache(maxsize=1024)
def boundaries(block_count: int, block_tokens: int) -> Sequence[int]:
    """Return the depths, shallowest first, at which a chain of `block_count` blocks meets a digest."""
    dense = DENSE_TOKENS // block_tokens
    depths = list(range(1, min(block_count, dense) + 1))
    depth = dense
    while True:
        stride = _stride(depth + 1, block_tokens)
        depth = (depth // stride + 1) * stride
        if depth > block_count:
            return tuple(depths)
        depths.append(depth)


def _stride(depth: int, block_tokens: int) -> int:
    """Return the blocks between boundaries around `depth`: doubled with each doubling of the depth."""
    least = max(1, STRIDE_TOKENS // block_tokens)
    return least << ((depth - 1) * block_tokens // _SPARSE_FROM_TOKENS).bit_length()


@dataclass(frozen=True, slots=True)
class Digest:
    """What a replica holds. `identity` names the chain, `epoch` the life of its cache.

    `bits` is a power of two of bytes long, so that filters of different sizes are probed at one place, taken
    modulo their size. False positives come at under 0.8 %; a name that is held is always found.
    """

    identity: str
    epoch: str
    names: int
    bits: bytes

    @classmethod
    def of(cls, names: Iterable[bytes], identity: str, epoch: str) -> Digest:
        """Build the digest of `names` (each at a boundary)."""
        held = list(names)
        least = max(_LEAST_BYTES, -(-len(held) * LEAST_BITS_PER_NAME // 8))
        size = min(1 << (least - 1).bit_length(), MAX_DIGEST_BYTES)
        flags = np.zeros(size * 8, dtype=np.uint8)
        if held:
            flags[positions(probes_of(*name_halves(held)), size * 8)] = 1
        return cls(identity, epoch, len(held), np.packbits(flags, bitorder="little").tobytes())

    def __contains__(self, name: bytes) -> bool:
        where = positions(probes_of(*name_halves([name])), len(self.bits) * 8)[:, 0].tolist()
        return all(self.bits[position >> 3] >> (position & 7) & 1 for position in where)

    def to_json(self) -> dict[str, object]:
        """Return the wire form."""
        return {
            "identity": self.identity,
            "epoch": self.epoch,
            "names": self.names,
            "probes": PROBES,
            "dense_tokens": DENSE_TOKENS,
            "stride_tokens": STRIDE_TOKENS,
            "bits": b64encode(self.bits).decode(),
        }

    @classmethod
    def from_json(cls, body: object) -> Digest:
        """Read the wire form; ValueError if it is not one that this version reads alike."""
        if not isinstance(body, dict):
            raise ValueError("a digest is a JSON object")
        layout = (body.get("probes"), body.get("dense_tokens"), body.get("stride_tokens"))
        if layout != (PROBES, DENSE_TOKENS, STRIDE_TOKENS):
            raise ValueError(f"digest layout {layout} is not {(PROBES, DENSE_TOKENS, STRIDE_TOKENS)}")
        identity, epoch, names, bits = (body.get(key) for key in ("identity", "epoch", "names", "bits"))
        if not (isinstance(identity, str) and isinstance(epoch, str) and isinstance(bits, str)):
            raise ValueError("a digest has text fields identity, epoch and bits")
        if not isinstance(names, int) or len(bits) > MAX_DIGEST_BYTES * 4 // 3 + 4:
            raise ValueError("a digest counts its names and is at most 128 KiB")
        decoded = b64decode(bits, validate=True)
        if len(decoded) < _LEAST_BYTES or len(decoded) & (len(decoded) - 1):
            raise ValueError("a digest is a power of two of bytes long, and no shorter than 64")
        return cls(identity, epoch, names, decoded)


def positions(probes: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.int64]:
    """Return where probes look in a filter of `width` bits, a power of two."""
    return (probes & np.uint64(width - 1)).view(np.int64)


def probes_of(first: npt.NDArray[np.uint64], second: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the probes of names by two hashes of each: probes by names."""
    return first + (second | np.uint64(1)) * _PROBE


def name_halves(names: Sequence[bytes]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return two hashes of each name; of a short one, whose second half is missing, its upper bits."""
    if not names:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint64)
    words = np.frombuffer(b"".join(names), dtype="<u8").reshape(len(names), -1)
    first = words[:, 0]
    return first, words[:, 1] if words.shape[1] > 1 else first >> np.uint64(32)
