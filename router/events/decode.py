"""Reads batches of KV events as vLLM and SGLang publish them: msgpack, events as maps or as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

import msgspec

from router.chain.chain import pack_tokens

# A batch is what one step of an engine stored and removed, under 1 MB; a decoded one takes ten times as much.
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
_MAX_TEXT = 1024
_MAX_HASH_BYTES = 64
_HASH_MASK = 2**64 - 1


class DecodeError(ValueError):
    """The payload is no batch of KV events."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that follow one another were stored in one place.

    `hashes` name them as the engine does (64 bits each), `parent` the block before them, None for the first
    of a prompt. `tokens` are theirs, packed, `block_tokens` a block. `place` is the cache that holds them
    now. `adapter` is the LoRA adapter's name, and `revision` what is told of which weights it stands for.
    `salt` is that of the prompt, told with its first block; `plain_blocks` counts those before the first one
    that depends on more than tokens, salt and adapter: a picture, given embeddings. `unfit` says why the
    tokens cannot be used, empty where they can.
    """

    hashes: Sequence[int]
    parent: int | None
    tokens: bytes
    block_tokens: int
    place: str
    adapter: str | None
    revision: str
    salt: str | None
    plain_blocks: int
    unfit: str


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks left one place; None stands for all places."""

    hashes: Sequence[int]
    place: str | None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache was emptied."""


KvEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What one message tells. `unknown` counts events of kinds not known here, which are left out."""

    events: Sequence[KvEvent]
    unknown: int


_STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
_REMOVED = ("block_hashes", "medium", "group_idx")


def decode_batch(payload: bytes) -> EventBatch:
    """Read the payload of one message; DecodeError where it is none.

    Events of another attention group than the first are left out, as hits need the blocks of all groups and
    a first group of full attention holds the most.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise DecodeError(f"a batch of {len(payload)} bytes is too large")
    try:
        batch = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DecodeError(f"not msgpack: {error}") from error
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise DecodeError("a batch is an array of a time and a list of events")
    if type(batch[0]) not in (int, float) or not isfinite(batch[0]):
        raise DecodeError("a batch begins with a time")
    events: list[KvEvent] = []
    unknown = 0
    for event in batch[1]:
        kind, fields = _fields(event)
        read = _READERS.get(kind)
        if read is None:
            unknown += 1
        elif (known := read(fields)) is not None:
            events.append(known)
    return EventBatch(events, unknown)


def _fields(event: object) -> tuple[str, Mapping[Any, Any]]:
    """Return an event's kind and its fields by name, from either form."""
    if isinstance(event, dict):
        kind = event.get("type")
        if not isinstance(kind, str):
            raise DecodeError("an event is a map with a type")
        return kind, event
    if not isinstance(event, list) or not event or not isinstance(event[0], str):
        raise DecodeError("an event is a map, or an array that begins with its type")
    names = _REMOVED if event[0] == "BlockRemoved" else _STORED
    # Later versions append fields: those that have no name here are not looked at.
    return event[0], dict(zip(names, event[1:], strict=False))


def _stored(fields: Mapping[Any, Any]) -> BlockStored | None:
    if not _in_first_group(fields):
        return None
    hashes = _hashes(fields)
    parent = fields.get("parent_block_hash")
    block_tokens = fields.get("block_size")
    if type(block_tokens) is not int or block_tokens < 0:
        raise DecodeError("block_size is a count of tokens")
    tokens, unfit = _tokens(fields.get("token_ids"), len(hashes) * block_tokens)
    adapter = _text(fields, "lora_name")
    if adapter is None and fields.get("lora_id") is not None:
        unfit = unfit or "an adapter without its name"
    salt, adapter_path, plain_blocks = None, "", len(hashes)
    if (keys := fields.get("extra_keys")) is not None:
        extra = _ExtraKeys(adapter, root=parent is None)
        plain_blocks = extra.read(keys, len(hashes))
        salt, adapter_path = extra.salt, extra.adapter_path
    revision = f"{fields.get('lora_id')}\0{adapter_path}" if adapter is not None else ""
    return BlockStored(
        hashes=hashes,
        parent=None if parent is None else _hash(parent),
        tokens=tokens,
        block_tokens=block_tokens,
        place=_place(fields) or "",
        adapter=adapter,
        revision=revision,
        salt=salt or _text(fields, "cache_salt") or None,
        plain_blocks=plain_blocks,
        unfit=unfit,
    )


def _removed(fields: Mapping[Any, Any]) -> BlockRemoved | None:
    return BlockRemoved(_hashes(fields), _place(fields)) if _in_first_group(fields) else None


def _cleared(fields: Mapping[Any, Any]) -> AllBlocksCleared:
    return AllBlocksCleared()


_READERS: Mapping[str, Callable[[Mapping[Any, Any]], KvEvent | None]] = {
    "BlockStored": _stored,
    "BlockRemoved": _removed,
    "AllBlocksCleared": _cleared,
}


def _in_first_group(fields: Mapping[Any, Any]) -> bool:
    """Say whether blocks are of full attention's group. Those of a sliding window are no whole prefix."""
    return fields.get("group_idx") in (None, 0) and fields.get("kv_cache_spec_sliding_window") is None


def _hashes(fields: Mapping[Any, Any]) -> list[int]:
    hashes = fields.get("block_hashes")
    if not isinstance(hashes, list):
        raise DecodeError("block_hashes is a list")
    return [value & _HASH_MASK if type(value) is int else _hash(value) for value in hashes]


def _hash(value: object) -> int:
    """Return one key for every form of a hash: the 64 bits that an engine sends unless told to send all."""
    if type(value) is int:
        return value & _HASH_MASK
    if isinstance(value, bytes) and 0 < len(value) <= _MAX_HASH_BYTES:
        return int.from_bytes(value[-8:], "big")
    raise DecodeError("a block hash is an integer or bytes")


def _tokens(ids: object, expected: int) -> tuple[bytes, str]:
    """Return the tokens packed, and why they cannot be used, empty where they can."""
    if not isinstance(ids, list):
        raise DecodeError("token_ids is a list")
    if not ids:
        # Blocks that an offloading tier tells of come without: known ones are found by their hash.
        return b"", "no tokens"
    if isinstance(ids[0], list):
        return b"", "pairs of tokens"
    if len(ids) != expected:
        return b"", "tokens that do not fill the blocks"
    try:
        return pack_tokens(ids), ""
    except (TypeError, OverflowError):
        return b"", "tokens that are no ids"


def _place(fields: Mapping[Any, Any]) -> str | None:
    """Return where blocks are: the medium, and whether it is another machine's."""
    medium = _text(fields, "medium")
    locality = _text(fields, "locality")
    return f"{medium}@{locality}" if medium is not None and locality not in (None, "LOCAL") else medium


def _text(fields: Mapping[Any, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None or (isinstance(value, str) and len(value) <= _MAX_TEXT):
        return value
    raise DecodeError(f"{name} is a text of at most {_MAX_TEXT} characters")


class _ExtraKeys:
    """What an event tells of the keys of its blocks: tagged ("cache_salt", salt), or bare values in order."""

    def __init__(self, adapter: str | None, root: bool) -> None:
        self._adapter = adapter
        self._root = root
        self.salt: str | None = None
        self.adapter_path = ""

    def read(self, of_blocks: object, block_count: int) -> int:
        """Note the keys; return how many blocks come before the first that depends on more than is named."""
        if not isinstance(of_blocks, list):
            raise DecodeError("extra_keys is a list, one entry a block")
        for block, keys in enumerate(of_blocks[:block_count]):
            if keys is not None and not self._plain(keys, first=self._root and block == 0):
                return block
        return block_count

    def _plain(self, keys: object, first: bool) -> bool:
        if not isinstance(keys, list):
            return False
        # Engines that speculate put the next tokens behind the keys: (keys or null, token, ...).
        if len(keys) > 1 and all(type(token) is int for token in keys[1:]):
            return keys[0] is None or self._plain(keys[0], first)
        return all(self._named(key, position, first) for position, key in enumerate(keys))

    def _named(self, key: object, position: int, first: bool) -> bool:
        """Note one key; false for one that names of blocks do not hold."""
        if isinstance(key, str):
            # Adapters go first: a salt may be called as one is.
            if position == 0 and key == self._adapter:
                return True
            if first and self.salt is None:
                # A bare text in a prompt's first block. Up to vLLM 0.18 a picture's id looks the same: it is
                # taken for a salt then, which no request brings.
                self.salt = key
                return len(key) <= _MAX_TEXT
            return False
        match key:
            case ["lora", str(name), str(path)] if name == self._adapter:
                self.adapter_path = path
                return True
            case ["cache_salt", str(salt)] if first and len(salt) <= _MAX_TEXT:
                self.salt = salt
                return True
        return False
