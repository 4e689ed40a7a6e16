"""A part: what is kept of a unit in place of its text, so that two of them can be compared.

Hashes of the whole and of its pieces (about a sentence each), in two ways: as they stand, and with all that
looks like a date, an identifier or a number masked. Where the former differ and the latter do not, a value
is all that changed, and its kind and place are known.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

from xxhash import xxh3_64_intdigest

from router.observe.layout.units import Unit

PIECE_CHARACTERS = 128
# Text behind this many characters is one piece: what a part may cost in time and memory has a bound.
PIECED_CHARACTERS = 64 * 1024
MAX_VALUES = 512

_BORDER = re.compile(r"(?:[.!?;]\s|[\n。！？；]|,(?=\"))\s*")
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_WEEKDAY = r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[AaPp][Mm]\b)?"
_VALUE = re.compile(
    rf"""(?P<date>
        \b\d{{4}}-\d{{2}}-\d{{2}}(?:[T ]{_CLOCK}(?:\s?(?:Z\b|UTC|[+-]\d{{2}}:?\d{{2}}))?)?
      | \b\d{{1,4}}[/.]\d{{1,2}}[/.]\d{{2,4}}\b
      | \b{_CLOCK}
      | (?:{_WEEKDAY},?\ )?\b(?:\d{{1,2}}(?:st|nd|rd|th)?\ )?{_MONTH}\.?
          \ \d{{1,4}}(?:st|nd|rd|th)?(?:,?\ \d{{4}})?\b
      | \b1[0-9]{{9}}(?:[0-9]{{3}}|\.\d+)?\b
      | {_WEEKDAY}\b
    )|(?P<identifier>
        \b[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-[0-9a-fA-F]{{4}}-[0-9a-fA-F]{{4}}-[0-9a-fA-F]{{12}}\b
      | \b(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])[A-Za-z0-9][A-Za-z0-9_-]{{7,}}
    )|(?P<number>
        \d+(?:[.,]\d+)*
    )""",
    re.VERBOSE,
)
_DIGIT = re.compile(r"\d")
_EXAMPLE = re.compile(r"^\W*(?:Example|Sample|Few-?shot|Input|Output|Question|Answer|Q|A)\b.{0,20}:", re.M)
_MASK = "\0"
# Other roles are not kept: clients may put any text there.
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "text"})


class Value(IntEnum):
    """What a value in a text looks like."""

    DATE = 1
    IDENTIFIER = 2
    NUMBER = 3


@dataclass(frozen=True, slots=True)
class Part:
    """One unit without its text (`text` is None but where it is asked for, offline).

    `digest` stands for the unit as it is, `spaced` with white space collapsed, `ordered` with JSON keys
    sorted, `skeleton` with values masked. Of piece i, `pieces[i]` and `masked[i]` are the digests, and
    `starts[i]` and `sizes[i]` its first character and its bytes. Of a value, `value_starts`, `value_sizes`
    (characters), `value_kinds`, `value_digests`. `size` is in bytes, with the header of `header` bytes.
    """

    kind: str
    role: str
    size: int
    header: int
    digest: int
    spaced: int
    ordered: int
    skeleton: int
    examples: bool
    pieces: array[int]
    masked: array[int]
    starts: array[int]
    sizes: array[int]
    value_starts: array[int]
    value_sizes: array[int]
    value_kinds: array[int]
    value_digests: array[int]
    text: str | None

    @property
    def held_bytes(self) -> int:
        """About what this object takes in memory."""
        own = 1100 + 24 * len(self.pieces) + 17 * len(self.value_starts)
        return own + (4 * len(self.text) if self.text else 0)


def part_of(
    unit: Unit,
    rendered: bytes,
    digest: int,
    pieced_characters: int = PIECED_CHARACTERS,
    keep_text: bool = False,
) -> Part:
    """Sketch a unit; `rendered` is its bytes and `digest` their hash, which callers know already.

    What stands behind the first `pieced_characters` of its text is one piece.
    """
    text, role = unit.text, unit.role
    head = text[: min(pieced_characters, PIECED_CHARACTERS)]
    borders = _borders(head, len(text))
    pieces, masked, sizes = array("Q"), array("Q"), array("I")
    starts, lengths, kinds, digests = array("I"), array("I"), array("B"), array("Q")
    skeleton: list[str] = []
    for start, end in pairwise(borders):
        piece = text[start:end]
        raw = piece.encode("utf-8", "surrogatepass")
        sizes.append(len(raw))
        pieces.append(xxh3_64_intdigest(raw))
        # Most have no value in them, which two scans tell.
        may_have = (
            start < len(head)
            and len(starts) < MAX_VALUES
            and ("day" in piece or _DIGIT.search(piece) is not None)
        )
        values = list(_VALUE.finditer(piece)) if may_have else []
        for value in values[: MAX_VALUES - len(starts)]:
            starts.append(start + value.start())
            lengths.append(value.end() - value.start())
            kinds.append(_kind(value))
            digests.append(_text_digest(value.group()))
        collapsed = " ".join((_VALUE.sub(_MASK, piece) if values else piece).split())
        skeleton.append(collapsed)
        # A piece without words has nothing that a value could have changed in.
        masked.append(_text_digest(collapsed) if collapsed.strip(_MASK + " ") else pieces[-1])
    return Part(
        kind=unit.kind,
        role=role if role in _ROLES else "other",
        size=len(rendered),
        header=len(role.encode("utf-8", "surrogatepass")) + 1,
        digest=digest,
        spaced=_text_digest(role + _MASK + " ".join(text.split())) if len(head) == len(text) else digest,
        ordered=digest if unit.sorted_text is None else _text_digest(role + _MASK + unit.sorted_text),
        skeleton=_text_digest(role + _MASK + _MASK.join(skeleton)),
        examples=len(_EXAMPLE.findall(head)) >= 2,
        pieces=pieces,
        masked=masked,
        starts=array("I", borders[:-1]),
        sizes=sizes,
        value_starts=starts,
        value_sizes=lengths,
        value_kinds=kinds,
        value_digests=digests,
        text=text if keep_text else None,
    )


def _borders(head: str, length: int) -> list[int]:
    """Return where pieces begin, and the end: behind sentences and lines, and within what is longer."""
    borders = [0]
    for end in [*(border.end() for border in _BORDER.finditer(head)), len(head)]:
        while end - borders[-1] > PIECE_CHARACTERS:
            borders.append(borders[-1] + PIECE_CHARACTERS)
        if end > borders[-1]:
            borders.append(end)
    if length > borders[-1]:
        borders.append(length)
    return borders


def _kind(match: re.Match[str]) -> Value:
    return {"date": Value.DATE, "identifier": Value.IDENTIFIER}.get(match.lastgroup or "", Value.NUMBER)


def _text_digest(text: str) -> int:
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
