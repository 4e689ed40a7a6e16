"""The pool of KV blocks: which are free, which are held, and what those that hold something are named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from types import MappingProxyType
from typing import Protocol

from replica.ghost import Ghost
from router.chain.digest import is_boundary


class Block:
    """One KV block, made once and used again and again. Only the pool writes to it.

    `references` counts the sequences that hold it; `name` stands for its content once it is full, and
    `depth` says that it ends that many blocks into its prompt. A block that nobody holds is in the free list.

    A named block keeps what its name was made of: `parent` (None for a prompt's first block), `data` (its
    tokens, packed) and, in a first block, the `salt`. It was the last one found of a prompt `hits` times,
    last at `hit_at` (monotonic seconds).
    """

    __slots__ = (
        "after",
        "before",
        "data",
        "depth",
        "hit_at",
        "hits",
        "id",
        "name",
        "next_twin",
        "parent",
        "previous_twin",
        "references",
        "salt",
    )

    def __init__(self, id: int) -> None:
        self.id = id
        self.references = 0
        self.name: bytes | None = None
        self.depth = 0
        self.parent: bytes | None = None
        self.data = b""
        self.salt: str | None = None
        self.hits = 0
        self.hit_at = 0.0
        self.before = self
        self.after = self
        # Blocks of one name (computed by two sequences at once) form a ring.
        self.previous_twin = self
        self.next_twin = self

    def __repr__(self) -> str:
        name = self.name.hex()[:8] if self.name else None
        return f"Block({self.id}, references={self.references}, name={name}, depth={self.depth})"


class PoolError(RuntimeError):
    """The pool was used against its rules: a fault of ours, not of a request."""


class PoolObserver(Protocol):
    """Is told of each change of what can be found, in the engine's thread and in order."""

    def stored(self, block: Block) -> None:
        """`block` has got a name that no block had."""

    def removed(self, name: bytes) -> None:
        """No block has `name` any more."""

    def cleared(self) -> None:
        """All names are gone at once."""


class BlockPool:
    """Hands out blocks, least recently used first, and finds those whose content is already there.

    The free list is LRU order and order of eviction at once: a chain's tail goes in before its head, and
    blocks without a name, which nobody can find again, go to the front. So the parent of a named block is
    named too. Every operation costs O(1) a block. Not thread-safe, but `match` may be called from another
    thread for an estimate: it only looks names up.
    """

    def __init__(
        self, block_count: int, block_tokens: int = 16, observer: PoolObserver | None = None
    ) -> None:
        if block_count < 1:
            raise PoolError("a pool has at least one block")
        self._observer = observer
        self.block_tokens = block_tokens
        self.block_count = block_count
        self.version = 0
        self.ghost = Ghost(block_count)
        self._blocks = [Block(id) for id in range(block_count)]
        self._named: dict[bytes, Block] = {}
        # The names that a digest publishes, kept apart so that it never walks the whole pool.
        self._boundary_names: dict[bytes, None] = {}
        self._free = 0
        self._list = Block(-1)
        for block in self._blocks:
            self._link(block, self._list)

    @property
    def free_count(self) -> int:
        """Blocks that nobody holds, with a name or without."""
        return self._free

    @property
    def name_count(self) -> int:
        """Different names that can be found."""
        return len(self._named)

    @property
    def named(self) -> Mapping[bytes, Block]:
        """The blocks that can be found, by name, a parent before its children."""
        return MappingProxyType(self._named)

    def match(self, names: Sequence[bytes], limit: int | None = None) -> list[Block]:
        """Return the blocks of the longest known run at the start of `names`; changes nothing."""
        found = []
        for name in names if limit is None else names[:limit]:
            block = self._named.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def touch(self, blocks: Iterable[Block]) -> None:
        """Hold matched blocks, before anything else is taken that could evict them."""
        for block in blocks:
            if block.references == 0:
                self._unlink(block)
            block.references += 1

    def take(self, count: int) -> list[Block] | None:
        """Hold `count` blocks to be written to, forgetting their names; None, and no change, if too few."""
        if count > self._free:
            return None
        taken = []
        for _ in range(count):
            block = self._list.after
            self._unlink(block)
            if (evicted := self._forget(block)) is not None:
                self.ghost.note(evicted)
                if self._observer is not None:
                    self._observer.removed(evicted)
            block.references = 1
            taken.append(block)
        return taken

    def note_hit(self, block: Block) -> None:
        """Count a prompt that was found up to `block`."""
        block.hits += 1
        block.hit_at = monotonic()

    def give_name(
        self,
        block: Block,
        name: bytes,
        depth: int,
        parent: bytes | None = None,
        data: bytes = b"",
        salt: str | None = None,
    ) -> None:
        """Make a full block findable. The block must be held and without a name."""
        if block.references == 0 or block.name is not None:
            raise PoolError(f"{block!r} cannot be named")
        block.name, block.depth = name, depth
        block.parent, block.data, block.salt = parent, data, salt
        block.hits = 0
        first = self._named.setdefault(name, block)
        if first is not block:
            block.previous_twin, block.next_twin = first, first.next_twin
            first.next_twin.previous_twin = block
            first.next_twin = block
            return
        self.version += 1
        if is_boundary(depth, self.block_tokens):
            self._boundary_names[name] = None
        if self._observer is not None:
            self._observer.stored(block)

    def release(self, blocks: Sequence[Block]) -> None:
        """Let go of a sequence's blocks, given from head to tail."""
        for block in reversed(blocks):
            if block.references == 0:
                raise PoolError(f"{block!r} is free already")
            block.references -= 1
            if block.references == 0:
                # Before the first block means to the front, before the list's own mark to its end.
                self._link(block, self._list.after if block.name is None else self._list)

    def reset(self) -> bool:
        """Forget every name; False, and no change, while any block is held."""
        if self._free < self.block_count:
            return False
        for block in self._blocks:
            self._forget(block)
        # Cleared, not evicted: the epoch tells.
        self.ghost.clear()
        if self._observer is not None:
            self._observer.cleared()
        return True

    def boundary_names(self) -> tuple[bytes, ...]:
        """Return the names that belong in a digest. O(names)."""
        return tuple(self._boundary_names)

    def _forget(self, block: Block) -> bytes | None:
        """Take a block's name; return it if nobody can find it any more."""
        name = block.name
        if name is None:
            return None
        block.name = None
        twin = block.next_twin
        if twin is not block:
            block.previous_twin.next_twin = twin
            twin.previous_twin = block.previous_twin
            block.previous_twin = block.next_twin = block
            if self._named[name] is block:
                self._named[name] = twin
                twin.hits, twin.hit_at = block.hits, block.hit_at
            return None
        del self._named[name]
        self._boundary_names.pop(name, None)
        self.version += 1
        return name

    def _link(self, block: Block, after: Block) -> None:
        """Put a block into the free list, before `after`."""
        block.before, block.after = after.before, after
        after.before.after = block
        after.before = block
        self._free += 1

    def _unlink(self, block: Block) -> None:
        block.before.after = block.after
        block.after.before = block.before
        block.before = block.after = block
        self._free -= 1
