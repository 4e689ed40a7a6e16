"""Compares two parts that stand in each other's place: where they part, why, and what they share behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from router.observe.layout.cause import Cause
from router.observe.layout.part import Part, Value

# A change up to this many bytes is a name or a value; more is text that somebody looked up.
VARIABLE_BYTES = 256

_CAUSES = {
    Value.DATE: Cause.DATE,
    Value.IDENTIFIER: Cause.IDENTIFIER,
    Value.NUMBER: Cause.NUMBER,
}


@dataclass(frozen=True, slots=True)
class Change:
    """What differs within a part.

    `before_bytes` (the header included) are equal up to character `character`; `behind_bytes` of the later
    part stand in the earlier one too, behind the change.
    """

    cause: Cause
    character: int
    before_bytes: int
    behind_bytes: int


def change_within(before: Part, now: Part) -> Change:
    """Compare two different parts of one role."""
    at = _first_difference(before.pieces, now.pieces)
    start = sum(now.sizes[:at])
    character = now.starts[at] if at < len(now.starts) else start
    formal = Cause.KEY_ORDER if before.ordered == now.ordered else Cause.WHITE_SPACE
    if formal is Cause.KEY_ORDER or before.spaced == now.spaced:
        # All of it would be found again.
        found = _exact(before, now, at, character, start)
        return Change(formal, *found, now.size - found[1])
    first, masks = _masked_values(before, now, at)
    behind = _shared_bytes(before, now, at)
    # The border behind the part is in both, too.
    end = now.size - now.header - sum(now.sizes)
    if first is not None:
        # Equal but for values, at least up to here: what is in their place is all that is lost.
        offset = now.value_starts[first]
        return Change(
            _CAUSES[Value(now.value_kinds[first])],
            offset,
            now.header + start + offset - character,
            behind + masks - (offset - character) + end,
        )
    found = _exact(before, now, at, character, start)
    behind = min(behind + end, now.size - found[1]) if behind else 0
    return Change(_textual(before, now, at, behind), *found, behind)


def _first_difference(left: Iterable[object], right: Iterable[object]) -> int:
    at = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        at += 1
    return at


def _exact(before: Part, now: Part, at: int, character: int, start: int) -> tuple[int, int]:
    """Return the character where they part and the equal bytes before it: exact where text is kept."""
    if before.text is None or now.text is None:
        return character, now.header + start
    same = _first_difference(before.text, now.text)
    extra = now.text[character:same].encode("utf-8", "surrogatepass")
    return same, now.header + start + len(extra)


def _masked_values(before: Part, now: Part, at: int) -> tuple[int | None, int]:
    """Return the first value that differs in piece `at`, and the bytes around such values from there on.

    None where more than a value differs in that piece.
    """
    if not (at < len(before.masked) and at < len(now.masked) and before.masked[at] == now.masked[at]):
        return None, 0
    known, masked, old = set(before.pieces[at:]), set(before.masked[at:]), set(before.value_digests)
    values = range(len(now.value_starts))
    first: int | None = None
    around = 0
    for piece in range(at, len(now.pieces)):
        if now.pieces[piece] in known or now.masked[piece] not in masked:
            continue
        begin, end = now.starts[piece], _end(now, piece)
        inside = [index for index in values if begin <= now.value_starts[index] < end]
        differing = [index for index in inside if now.value_digests[index] not in old] or inside[:1]
        if first is None:
            if not differing:
                return None, 0
            first = differing[0]
        around += now.sizes[piece] - sum(now.value_sizes[index] for index in differing)
    return first, around


def _end(part: Part, piece: int) -> int:
    return part.starts[piece + 1] if piece + 1 < len(part.starts) else part.starts[piece] + part.sizes[piece]


def _shared_bytes(before: Part, now: Part, at: int) -> int:
    """Return the bytes of pieces behind piece `at` that stand in both, in any order."""
    left = Counter(before.pieces[at:])
    shared = 0
    for index in range(at, len(now.pieces)):
        if left[now.pieces[index]] > 0:
            left[now.pieces[index]] -= 1
            shared += now.sizes[index]
    return shared


def _textual(before: Part, now: Part, at: int, behind: int) -> Cause:
    moved = (
        at < min(len(before.pieces), len(now.pieces))
        and now.pieces[at] in before.pieces[at:]
        and before.pieces[at] in now.pieces[at:]
    )
    if moved or (before.examples and now.examples):
        return Cause.EXAMPLES
    changed = max(before.size, now.size) - behind - sum(now.sizes[:at])
    return Cause.VARIABLE if changed <= VARIABLE_BYTES else Cause.RETRIEVAL
