"""KV events: what happens to the pool's names, gathered a step at a time, in vLLM's words.

Source: vLLM 0.33, vllm/distributed/kv_events.py: structures as msgpack maps with defaults left out, a batch
as an array. Engines before 0.24 sent arrays; followers read both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Protocol

import msgspec

from replica.block_pool import Block
from router.chain.chain import unpack_tokens

# vLLM's word for the tier that computes, whatever it is made of.
MEDIUM = "GPU"
_HASH_BYTES = 8
_encoder = msgspec.msgpack.Encoder()


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks that follow each other can now be found. `extra_keys` holds the salt of a first block."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str] | None] | None = None
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks that can no longer be found."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True):
    """Nothing can be found any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True):
    """All events of one step. `ts` is unix seconds."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None


@dataclass(slots=True)
class Stored:
    """A run of blocks that follow each other, as the pool told of them."""

    parent: bytes | None
    salt: str | None
    names: list[bytes] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Removed:
    """Names that went one after the other."""

    names: list[bytes] = field(default_factory=list)


class Cleared:
    """All names went."""


Change = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Changes:
    """What one step or reset did, `at` unix seconds; `sequence` numbers them from 0, in order."""

    sequence: int
    at: float
    changes: Sequence[Change]


class Publisher(Protocol):
    """Takes changes to its followers."""

    def put(self, changes: Changes) -> None:
        """Take changes; this never waits, and drops them if too many wait already."""


class EventLog:
    """Observes the pool (a replica.block_pool.PoolObserver). Only the engine's thread calls it.

    It does as little as can be: hashes, token ids and bytes are made of it elsewhere.
    """

    def __init__(self, publisher: Publisher, clock: Callable[[], float] = time) -> None:
        self._publisher = publisher
        self._clock = clock
        self._sequence = 0
        self._changes: list[Change] = []
        self._stored: Stored | None = None
        self._removed: Removed | None = None

    def stored(self, block: Block) -> None:
        """See PoolObserver."""
        assert block.name is not None
        run = self._stored
        if run is None or block.parent is None or run.names[-1] != block.parent:
            run = self._stored = Stored(block.parent, block.salt)
            self._removed = None
            self._changes.append(run)
        run.names.append(block.name)
        run.data.append(block.data)

    def removed(self, name: bytes) -> None:
        """See PoolObserver."""
        if self._removed is None:
            self._removed = Removed()
            self._stored = None
            self._changes.append(self._removed)
        self._removed.names.append(name)

    def cleared(self) -> None:
        """See PoolObserver."""
        self._stored = self._removed = None
        self._changes.append(Cleared())

    def flush(self) -> None:
        """Hand on what was gathered, if anything was, as one batch."""
        if not self._changes:
            return
        self._publisher.put(Changes(self._sequence, self._clock(), self._changes))
        self._sequence += 1
        self._changes = []
        self._stored = self._removed = None


def encode(changes: Changes, block_tokens: int) -> bytes:
    """Return the payload of a batch: msgpack of [ts, events, rank]."""
    events = [_event(change, block_tokens) for change in changes.changes]
    return _encoder.encode(EventBatch(changes.at, events, 0))


def _event(change: Change, block_tokens: int) -> Event:
    if isinstance(change, Cleared):
        return AllBlocksCleared()
    hashes = [_hash(name) for name in change.names]
    if isinstance(change, Removed):
        return BlockRemoved(hashes, MEDIUM, 0)
    extra_keys: list[tuple[str] | None] = [None] * len(hashes)
    if change.salt is not None:
        extra_keys[0] = (change.salt,)
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=None if change.parent is None else _hash(change.parent),
        token_ids=unpack_tokens(b"".join(change.data)),
        block_size=block_tokens,
        lora_id=None,
        medium=MEDIUM,
        lora_name=None,
        extra_keys=extra_keys,
        group_idx=0,
    )


def _hash(name: bytes) -> int:
    return int.from_bytes(name[-_HASH_BYTES:], "big")
