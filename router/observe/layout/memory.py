"""Remembers prompts as sketches, within a bound of bytes, and finds the one to share with."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from router.observe.layout.cause import Cause
from router.observe.layout.compare import Comparison, Divergence, compare
from router.observe.layout.part import Part
from router.observe.layout.sketch import Sketch

_CANDIDATES = 4
# Parts and pieces shorter than this are everywhere, and find nothing.
_TELLING_BYTES = 32
_INDEXED_HEAD, _INDEXED_TAIL = 8, 32
_INDEXED_PIECES = 6
_ENTRY_BYTES, _KEY_BYTES, _SLOT_BYTES = 700, 110, 8
# A history that was cut or summarised this few turns ago is cut all the time.
_CLEAN_TURNS = 4

_MASK64 = (1 << 64) - 1
_CUTS = {Cause.COMPACTION, Cause.SLIDING_WINDOW}


@dataclass(slots=True)
class _Entry:
    """One remembered prompt. `turns` counts its continuations since its history was last cut."""

    id: int
    sketch: Sketch
    layout: int
    turns: int
    keys: tuple[int, ...]
    chain: tuple[int, ...]


@dataclass(slots=True)
class _Held:
    part: Part
    holders: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """What a new prompt has to do with those before it.

    `layout` tells families of prompts apart: the number of the first, inherited by all that share with it;
    0 for all that have neither tools nor a system prompt. `hit_bytes` are what a cache of all remembered
    prompts holds of it, from its start on; `lost` pairs each divergence with the bytes that it alone cost.
    `new` where nothing like it is known.
    """

    layout: int
    new: bool
    hit_bytes: int
    lost: tuple[tuple[Divergence, int], ...] = field(default=())


class LayoutMemory:
    """Prompts seen lately, at most `max_prompts` of them in about `max_bytes`. Not thread-safe.

    A prompt that carries on most of an earlier one takes its place, so that a conversation counts once.
    """

    def __init__(self, max_bytes: int, max_prompts: int) -> None:
        self._max_bytes = max_bytes
        self._max_prompts = max_prompts
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._index: dict[int, int] = {}
        self._parts: dict[int, _Held] = {}
        self._next = 1
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def part(self, digest: int) -> Part | None:
        """Return a part of a remembered prompt."""
        held = self._parts.get(digest)
        return held.part if held else None

    def see(self, sketch: Sketch, hit_bytes: int | None = None) -> Finding:
        """Compare a prompt with what is remembered, and remember it.

        `hit_bytes` is what a cache holds of it, where that is known better than from what is remembered.
        """
        chain = _chain(sketch)
        keys = _keys(sketch)
        best: _Entry | None = None
        found = Comparison()
        common = 0
        for entry in self._candidates(sketch, keys, chain):
            compared = compare(entry.sketch, sketch)
            if entry.sketch.keys == sketch.keys:
                common = max(common, compared.common_bytes)
            # Of two that hold as much, the one with less to mend.
            if best is None or (compared.shareable_bytes, compared.common_bytes) > (
                found.shareable_bytes,
                found.common_bytes,
            ):
                best, found = entry, compared
        hit = common if hit_bytes is None else hit_bytes
        if best is None or found.shareable_bytes < _TELLING_BYTES:
            entry = self._remember(sketch, None, keys, chain, _CLEAN_TURNS)
            return Finding(entry.layout, True, hit)
        carries_on = _carries_on(best.sketch, sketch)
        turns = best.turns + 1 if carries_on else _CLEAN_TURNS
        for divergence in found.divergences:
            if divergence.cause in _CUTS:
                divergence.cause = _by_rhythm(divergence, best.turns)
                turns = 0
        lost = _losses(found, hit)
        entry = self._remember(sketch, best, keys, chain, turns)
        if carries_on:
            self._forget(best.id)
        return Finding(entry.layout, False, hit, lost)

    def _candidates(self, sketch: Sketch, keys: Iterable[int], chain: tuple[int, ...]) -> list[_Entry]:
        """Return the prompts that most of the keys name, and the one with the longest common start."""
        votes: Counter[int] = Counter()
        for key in keys:
            if (id := self._index.get(key)) is not None:
                votes[id] += 1
        # Of equals the latest: it is likelier to be the turn before.
        ids = [id for id, _ in sorted(votes.items(), key=lambda vote: (-vote[1], -vote[0]))[:_CANDIDATES]]
        for place in reversed(chain):
            if (id := self._index.get(place)) is not None:
                if id not in ids:
                    ids.append(id)
                break
        return [self._entries[id] for id in ids]

    def _remember(
        self, sketch: Sketch, like: _Entry | None, keys: tuple[int, ...], chain: tuple[int, ...], turns: int
    ) -> _Entry:
        id = self._next
        self._next += 1
        layout = like.layout if like else (id if sketch.tools or sketch.preamble else 0)
        entry = _Entry(id, sketch, layout, turns, keys, chain)
        self._entries[id] = entry
        if like is not None:
            self._entries.move_to_end(like.id)
            self._entries.move_to_end(id)
        for key in (*keys, *chain):
            self._index[key] = id
        for part in sketch.parts:
            held = self._parts.get(part.digest)
            if held is None:
                held = self._parts[part.digest] = _Held(part)
                self.held_bytes += part.held_bytes
            held.holders += 1
        self.held_bytes += _own_bytes(entry)
        while len(self._entries) > 1 and (
            len(self._entries) > self._max_prompts or self.held_bytes > self._max_bytes
        ):
            self._forget(next(iter(self._entries)))
        return entry

    def _forget(self, id: int) -> None:
        entry = self._entries.pop(id, None)
        if entry is None:
            return
        for key in (*entry.keys, *entry.chain):
            if self._index.get(key) == id:
                del self._index[key]
        for part in entry.sketch.parts:
            held = self._parts[part.digest]
            held.holders -= 1
            if held.holders == 0:
                del self._parts[part.digest]
                self.held_bytes -= held.part.held_bytes
        self.held_bytes -= _own_bytes(entry)


def _own_bytes(entry: _Entry) -> int:
    keys = len(entry.keys) + len(entry.chain)
    return _ENTRY_BYTES + _KEY_BYTES * keys + _SLOT_BYTES * len(entry.sketch.parts)


def _carries_on(old: Sketch, now: Sketch) -> bool:
    """Say whether most of an earlier conversation is in this one."""
    if old.keys != now.keys or old.conversation_bytes == 0:
        return old.keys == now.keys and now.conversation_bytes == 0
    left = Counter(part.skeleton for part in now.messages[now.preamble :])
    kept = 0
    for part in old.messages[old.preamble :]:
        if left[part.skeleton] > 0:
            left[part.skeleton] -= 1
            kept += part.size
    return kept * 2 >= old.conversation_bytes


def _by_rhythm(divergence: Divergence, turns: int) -> Cause:
    """Tell a history that is cut once from one that was cut `turns` turns ago, too."""
    if divergence.cause is Cause.COMPACTION and turns < _CLEAN_TURNS:
        return Cause.SLIDING_WINDOW if divergence.detail == "cut" else Cause.ROLLING_COMPACTION
    return divergence.cause


def _losses(found: Comparison, hit_bytes: int) -> tuple[tuple[Divergence, int], ...]:
    """Return what each divergence alone cost: of its gain, what was not found anyway."""
    reached = found.common_bytes
    lost = []
    for divergence in found.divergences:
        upto = reached + divergence.gain_bytes
        loss = upto - max(reached, hit_bytes)
        if loss > 0:
            lost.append((divergence, loss))
        reached = upto
    return tuple(lost)


def _chain(sketch: Sketch) -> tuple[int, ...]:
    """Return a key for each start of the prompt that ends with a part."""
    place = xxh3_64_intdigest(repr(sketch.keys).encode())
    places = []
    for part in sketch.parts:
        place = (place * 0x9E3779B97F4A7C15 + part.digest) & _MASK64
        places.append(place)
    return tuple(places)


def _keys(sketch: Sketch) -> tuple[int, ...]:
    """Return keys under which prompts with the same content find each other, wherever it stands in them."""
    keys: dict[int, None] = {}
    if sketch.tools:
        tools = sorted(part.ordered for part in sketch.tools)
        keys[xxh3_64_intdigest(repr(tools).encode())] = None
    messages = sketch.messages
    chosen = (
        messages
        if len(messages) <= _INDEXED_HEAD + _INDEXED_TAIL
        else (
            *messages[:_INDEXED_HEAD],
            *messages[-_INDEXED_TAIL:],
        )
    )
    for part in (*sketch.tools[:_INDEXED_HEAD], *chosen):
        if part.size >= _TELLING_BYTES:
            keys[part.skeleton] = None
            keys[part.ordered] = None
    # Of what all conversations share, a few pieces too: it may stand behind what differs.
    for part in messages[: sketch.preamble + 1]:
        telling = [
            piece for piece, size in zip(part.masked, part.sizes, strict=True) if size >= _TELLING_BYTES
        ]
        keys |= dict.fromkeys((*sorted(set(telling))[:_INDEXED_PIECES], *telling[-1:]))
    return tuple(keys)
