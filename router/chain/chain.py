"""The chain of one prompt, and the identity that says which chains compare."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from sys import byteorder
from typing import NamedTuple

TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class ChainIdentity:
    """Everything that two parties must share for their names to compare.

    `kind` is "tokens" or "bytes"; fingerprints are hex, empty where there is no tokenizer.
    """

    kind: str
    algorithm: str
    block_tokens: int
    root_fingerprint: str
    tokenizer_fingerprint: str = ""
    template_fingerprint: str = ""

    @property
    def fingerprint(self) -> str:
        """16 hex digits that stand for the whole identity."""
        fields = (
            self.kind,
            self.algorithm,
            str(self.block_tokens),
            self.root_fingerprint,
            self.tokenizer_fingerprint,
            self.template_fingerprint,
        )
        return fingerprint("\0".join(fields).encode())


class Chain(NamedTuple):
    """The names of one prompt's full blocks, in order.

    `identity` is the fingerprint of its ChainIdentity. `data` is what was named (u32-LE tokens, or bytes),
    with the remainder that fills no block at its end; `block_bytes` of it make one block, which stands for
    `block_tokens` tokens; a simulated chain has no data. `prompt_tokens` is the
    prompt's length (estimated for a byte chain). `preamble_tokens` is the length of what comes before the
    conversation proper: tools and leading system messages, 0 where unknown.
    """

    identity: str
    names: Sequence[bytes]
    data: bytes
    block_bytes: int
    block_tokens: int
    prompt_tokens: int
    preamble_tokens: int = 0

    @property
    def remainder(self) -> bytes:
        """The part of `data` behind the last full block."""
        return self.data[len(self.names) * self.block_bytes :]


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Pack token ids as u32 little-endian; OverflowError for an id outside 0 .. 2**32-1."""
    packed = array("I", tokens)
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(data: bytes) -> list[int]:
    """Undo `pack_tokens`."""
    unpacked = array("I")
    unpacked.frombytes(data)
    if byteorder == "big":
        unpacked.byteswap()
    return unpacked.tolist()


def fingerprint(material: bytes) -> str:
    """16 hex digits of sha256; used for roots too, so that a secret seed is not given away."""
    return sha256(b"kvring fingerprint\0" + material).hexdigest()[:16]
