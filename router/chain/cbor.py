"""The part of canonical CBOR (RFC 8949) that names of blocks need: integers, bytes, text, null, arrays."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import TypeAlias

CborItem: TypeAlias = "int | bytes | str | tuple[CborItem, ...] | None"

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY = range(5)
_NULL = b"\xf6"
_UINT16, _UINT32 = 25, 26
_pack16 = Struct(">BH").pack
_pack32 = Struct(">BI").pack


def encode(item: CborItem) -> bytes:
    """Encode `item`, every length and integer in its shortest form.

    OverflowError for an integer beyond 64 bits, UnicodeEncodeError for a lone surrogate, TypeError for a
    value of another type (`bool` included).
    """
    if item is None:
        return _NULL
    if isinstance(item, str):
        text = item.encode()
        return _head(_TEXT, len(text)) + text
    if isinstance(item, bytes):
        return _head(_BYTES, len(item)) + item
    if isinstance(item, tuple):
        return _head(_ARRAY, len(item)) + b"".join(map(encode, item))
    if type(item) is int:
        return _head(_UNSIGNED, item) if item >= 0 else _head(_NEGATIVE, -1 - item)
    raise TypeError(f"cannot encode {type(item).__name__} as CBOR")


def encode_array_head(length: int) -> bytes:
    """Encode what precedes the items of an array of `length` items."""
    return _head(_ARRAY, length)


def encode_tokens(tokens: Iterable[int]) -> bytes:
    """Encode integers of 0 .. 2**32-1 one after the other, as an array's items. Made for long prompts."""
    # Calls are what this costs: the two widths that fill a vocabulary are packed without a Python one.
    return b"".join(
        [
            _pack32(_UINT32, token)
            if token > 0xFFFF
            else _pack16(_UINT16, token)
            if token > 0xFF
            else _head(_UNSIGNED, token)
            for token in tokens
        ]
    )


def _head(major: int, argument: int) -> bytes:
    kind = major << 5
    if argument < 24:
        return bytes((kind | argument,))
    for code, width in ((24, 1), (25, 2), (26, 4)):
        if argument < 1 << 8 * width:
            return bytes((kind | code,)) + argument.to_bytes(width, "big")
    return bytes((kind | 27,)) + argument.to_bytes(8, "big")
