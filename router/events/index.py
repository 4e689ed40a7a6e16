"""The index of one replica: which blocks it holds, by the engine's hashes, and what they are called here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

from router.chain.chain import TOKEN_BYTES
from router.chain.digest import DENSE_TOKENS, STRIDE_TOKENS, is_boundary
from router.chain.keys import Keys
from router.chain.namer import ChainNamer
from router.events.decode import BlockRemoved, BlockStored, KvEvent
from router.events.orphans import Orphans
from router.events.spaces import Spaces

# Blocks handled before others get a turn, half a millisecond's worth.
STEP_BLOCKS = 128
# Evicted at once, since finding the oldest walks over those that left before.
_EVICTED_BLOCKS = 1024
_MAX_PLACES = 15
_LAST_PLACE = 2 << _MAX_PLACES
_ALL_PLACES = 2 * _LAST_PLACE - 2

# An engine block: the name of the last full block of ours up to its end (before the first one is full: the
# keys that go into it), how many are full, what is left of the tokens; the places that hold it, a bit each;
# the names that end in it before that last one and that digests count; the space they are in. A name of None
# ends the chain: what follows cannot be named. A plain tuple of atoms takes half the memory of an object, and
# the garbage collector does not walk it.
_Entry: TypeAlias = tuple[bytes | None, int, bytes, int, tuple[bytes, ...], int]
# The bit of places that says that the last name ends in the block and that digests count it.
_COUNTED = 1
_NONE: tuple[bytes, ...] = ()


class ResidentIndex:
    """Follows the events of one engine process, of one rank where there are several.

    Blocks are named here over the tokens that events tell, whatever size the engine's blocks have: a block of
    ours counts once its last token is stored, and as long as the engine block that holds that token is in at
    least one place. An engine's hash says equal content, so that a block stored twice in one place is held
    once: engines tell again of blocks they merely hit.

    A block whose parent is not known waits, bounded, until the parent is told of: it is never credited for
    what lies before it. Up to vLLM 0.16 events do not tell salts: names then are those of unsalted prompts.
    """

    def __init__(
        self,
        namer: ChainNamer,
        model: str,
        namer_of: Callable[[str], ChainNamer | None],
        limit_blocks: int,
    ) -> None:
        """Hold at most `limit_blocks` engine blocks, those stored last.

        `namer` names over tokens; `model` is what clients ask for when they mean no adapter. `namer_of` tells
        who names the prompts of an adapter.
        """
        self.namer = namer
        self.identity = namer.identity.fingerprint
        # Another one with each clearing: what was held before is void.
        self.life = 0
        self.indexed_blocks = 0
        self.evicted_blocks = 0
        self.skipped_blocks: Counter[str] = Counter()
        self._model = model
        self._spaces = Spaces(namer, namer_of)
        self._limit = limit_blocks
        self._dense = DENSE_TOKENS // namer.block_tokens
        self._least_stride = max(1, STRIDE_TOKENS // namer.block_tokens)
        self._entries: dict[int, _Entry] = {}
        self._orphans = Orphans(max(1024, limit_blocks // 16))
        self._places: dict[str, int] = {}

    @property
    def names_version(self) -> int:
        """Grows with each change of the names."""
        return self._spaces.version

    @property
    def block_count(self) -> int:
        """Engine blocks known."""
        return len(self._entries)

    @property
    def orphan_count(self) -> int:
        """Engine blocks that wait for their parent."""
        return len(self._orphans)

    @property
    def usable(self) -> bool:
        """False where blocks were told of and none could be named: then nothing is known."""
        return self.indexed_blocks > 0 or not self.skipped_blocks

    def names(self) -> list[bytes]:
        """Return the names held that digests count."""
        return self._spaces.names()

    def clear(self) -> Iterator[None]:
        """Forget everything that is held, at once; what follows in steps only frees the memory."""
        waste: tuple[dict[Any, Any], ...] = (self._entries, *self._spaces.clear())
        self._entries = {}
        self._orphans.clear()
        self.life += 1
        return _freed(waste)

    def take(self, event: KvEvent) -> Iterator[None]:
        """Take one event, in steps between which others may have their turn; run it to its end."""
        if isinstance(event, BlockStored):
            return self._store(event)
        if isinstance(event, BlockRemoved):
            return self._remove(event)
        return self.clear()

    def _store(self, event: BlockStored) -> Iterator[None]:
        count = len(event.hashes)
        place = self._place_bit(event.place)
        if event.unfit:
            known = sum(self._found_at(hash_, place) for hash_ in event.hashes)
            self._skip(event.unfit, count - known)
            yield
            return
        space = self._spaces.of(event)
        if space is None:
            self._skip("an adapter named otherwise", count)
            return
        size, parent = event.block_tokens * TOKEN_BYTES, event.parent
        for start in range(0, count, STEP_BLOCKS):
            hashes, part, plain = event.hashes, event.tokens, event.plain_blocks
            if count > STEP_BLOCKS:
                hashes = hashes[start : start + STEP_BLOCKS]
                part = part[start * size : (start + len(hashes)) * size]
                plain = max(0, plain - start)
            if parent is None:
                root = (self._keys(event), 0, b"", 0, _NONE, space)
                self._extend(root, hashes, part, size, place, plain)
            elif (behind := self._entries.get(parent)) is not None:
                self._extend(behind, hashes, part, size, place, plain)
            else:
                self._strand(parent, hashes, part, size, place, plain)
            if self._orphans:
                yield from self._adopt(hashes)
            self._bound()
            parent = hashes[-1]
            yield

    def _extend(
        self, behind: _Entry, hashes: Sequence[int], data: bytes, size: int, place: int, plain: int
    ) -> None:
        """Enter blocks of `size` bytes that come `behind` an entry; those from `plain` on have no names."""
        parent, depth, carry, _, _, space = behind
        if parent is None:
            plain = 0
        data = carry + data if carry else data
        names = self._name(parent, depth, data) if parent is not None and plain else []
        block_bytes = self.namer.block_bytes
        done, end = 0, len(carry)
        for hash_ in hashes[:plain]:
            end += size
            before, done = done, end // block_bytes
            held = self._entries.get(hash_)
            if held is not None:
                if held[5] == space:
                    self._found_at(hash_, place)
                    continue
                self._release(held)
            places, earlier = place, _NONE
            counted = self._counted(names, depth, before, done)
            if counted:
                self._spaces.hold(counted, space)
                if counted[-1] is names[done - 1]:
                    places |= _COUNTED
                    counted = counted[:-1]
                earlier = tuple(counted)
            left = data[done * block_bytes : end] if done * block_bytes != end else b""
            name = names[done - 1] if done else parent
            self._entries[hash_] = (name, depth + done, left, places, earlier, space)
            self.indexed_blocks += 1
        for hash_ in hashes[plain:]:
            if not self._found_at(hash_, place):
                self._entries[hash_] = (None, 0, b"", place, _NONE, space)
        self._skip("more than tokens in their keys", len(hashes) - plain)

    def _strand(
        self, parent: int, hashes: Sequence[int], data: bytes, size: int, place: int, plain: int
    ) -> None:
        """Let blocks wait whose parent is not known; but one told of again is known, and what follows it."""
        lone = next((at for at, hash_ in enumerate(hashes) if hash_ in self._entries), len(hashes))
        self._orphans.add(parent, hashes[:lone], data, size, place, plain)
        if lone < len(hashes):
            self._found_at(hashes[lone], place)
            behind, after = self._entries[hashes[lone]], lone + 1
            self._extend(behind, hashes[after:], data[after * size :], size, place, max(0, plain - after))

    def _counted(self, names: Sequence[bytes], depth: int, before: int, done: int) -> list[bytes]:
        """Return those of `names[before:done]` that digests count; the first of all has `depth` above it."""
        if done - before == 1 and depth + done <= self._dense:
            return [names[before]]
        return [
            names[index - depth - 1]
            for index in range(depth + before + 1, depth + done + 1)
            if index <= self._dense
            or (index % self._least_stride == 0 and is_boundary(index, self.namer.block_tokens))
        ]

    def _name(self, parent: bytes, depth: int, data: bytes) -> list[bytes]:
        if depth:
            return self.namer.name_blocks(parent, data, {}, depth)
        # Before the first block is full, its keys stand in its name's stead.
        return self.namer.name_blocks(self.namer.root, data, {0: parent}, 0)

    def _adopt(self, hashes: Sequence[int]) -> Iterator[None]:
        """Enter the blocks that waited for `hashes`, and those that waited for them in turn."""
        known = [hash_ for hash_ in hashes if hash_ in self._entries]
        found = [orphan for hash_ in known for orphan in self._orphans.pop_children(hash_)]
        while found:
            for _ in range(min(STEP_BLOCKS, len(found))):
                hash_, orphan = found.pop()
                behind = self._entries.get(orphan.parent)
                if behind is None:
                    continue
                tokens, plain = orphan.tokens, int(orphan.plain)
                self._extend(behind, (hash_,), tokens, len(tokens), orphan.places, plain)
                found += self._orphans.pop_children(hash_)
            self._bound()
            yield

    def _found_at(self, hash_: int, place: int) -> bool:
        """Note that a known block is also at `place`; say whether it is known."""
        entry = self._entries.get(hash_)
        if entry is None:
            return False
        if entry[3] & place != place:
            self._entries[hash_] = (*entry[:3], entry[3] | place, *entry[4:])
        return True

    def _remove(self, event: BlockRemoved) -> Iterator[None]:
        gone = _ALL_PLACES if event.place is None else self._place_bit(event.place)
        for position, hash_ in enumerate(event.hashes, 1):
            entry = self._entries.get(hash_)
            if entry is None:
                self._orphans.remove(hash_, gone)
            elif (left := entry[3] & ~gone) > _COUNTED:
                self._entries[hash_] = (*entry[:3], left, *entry[4:])
            else:
                del self._entries[hash_]
                self._release(entry)
            if position % STEP_BLOCKS == 0:
                yield

    def _bound(self) -> None:
        """Forget the oldest beyond the limit: some at once, as finding them walks over those that left."""
        excess = len(self._entries) - self._limit
        if excess > 0:
            for hash_ in list(islice(self._entries, excess + min(_EVICTED_BLOCKS, self._limit // 64))):
                self._release(self._entries.pop(hash_))
                self.evicted_blocks += 1

    def _release(self, entry: _Entry) -> None:
        last, _, _, places, names, space = entry
        if places & _COUNTED and last is not None:
            names = (*names, last)
        self._spaces.release(names, space)

    def _keys(self, event: BlockStored) -> bytes:
        """Return the keys of a prompt's first block. Clients ask for an adapter by its name."""
        return Keys(model=event.adapter or self._model, salt=event.salt).of_first_block()

    def _place_bit(self, place: str) -> int:
        bit = self._places.get(place)
        if bit is None:
            # Beyond what any engine has, places share one.
            if len(self._places) == _MAX_PLACES:
                return _LAST_PLACE
            bit = self._places[place] = 2 << len(self._places)
        return bit

    def _skip(self, reason: str, blocks: int) -> None:
        if blocks > 0:
            self.skipped_blocks[reason] += blocks


def _freed(waste: tuple[dict[Any, Any], ...]) -> Iterator[None]:
    """Empty large tables bit by bit: to free one at once takes a tenth of a second for a million blocks."""
    for table in waste:
        while table:
            for _ in range(min(len(table), 8 * STEP_BLOCKS)):
                table.popitem()
            yield
