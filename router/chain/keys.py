"""Keys: what else, beside tokens and position, makes the KV of two equal token runs differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

# One tag byte for each kind of key. A tag never changes its meaning: names of blocks depend on it.
_MODEL = 1
_ADAPTER = 2
_ADAPTER_REVISION = 3
_SALT = 4
_IMAGE = 5
_head = Struct("<BI").pack


@dataclass(frozen=True, slots=True)
class ImageKey:
    """A picture in the prompt: digest of its content, first position and length in tokens."""

    digest: bytes
    start_tokens: int
    length_tokens: int


class Keys(NamedTuple):
    """The keys of one prompt. `salt` separates tenants; an empty salt is a salt, None is none."""

    model: str
    adapter: str | None = None
    adapter_revision: str | None = None
    salt: str | None = None
    images: tuple[ImageKey, ...] = ()

    def of_first_block(self) -> bytes:
        """Encode what holds for the whole prompt: it enters the first block, and names carry it on."""
        encoded = _entry(_MODEL, _text(self.model))
        if self.adapter is not None:
            encoded += _entry(_ADAPTER, _text(self.adapter))
        if self.adapter_revision is not None:
            encoded += _entry(_ADAPTER_REVISION, _text(self.adapter_revision))
        if self.salt is not None:
            encoded += _entry(_SALT, _text(self.salt))
        return encoded

    def of_block(self, index: int, block_tokens: int) -> bytes:
        """Encode the keys of block `index`: in block 0 the prompt's, and the pictures that overlap it."""
        encoded = self.of_first_block() if index == 0 else b""
        if not self.images:
            return encoded
        return encoded + b"".join(self._images_in(index * block_tokens, block_tokens))

    def keyed_blocks(self, block_tokens: int) -> dict[int, bytes]:
        """Return the encoded keys of every block that has any, by its index, ascending."""
        if not self.images:
            return {0: self.of_first_block()}
        indices = {0}
        for image in self.images:
            first = image.start_tokens // block_tokens
            last = (image.start_tokens + max(image.length_tokens, 1) - 1) // block_tokens
            indices.update(range(first, last + 1))
        return {index: self.of_block(index, block_tokens) for index in sorted(indices)}

    def _images_in(self, start: int, length: int) -> Iterator[bytes]:
        for image in self.images:
            if (
                image.start_tokens < start + length
                and image.start_tokens + max(image.length_tokens, 1) > start
            ):
                # The offset tells two pictures apart that lie differently against the block's border.
                offset = (image.start_tokens - start).to_bytes(8, "little", signed=True)
                yield _entry(_IMAGE, offset + image.digest)


def _entry(tag: int, payload: bytes) -> bytes:
    return _head(tag, len(payload)) + payload


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")
