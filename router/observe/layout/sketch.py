"""A sketch: a whole prompt in parts, with its keys; and how a body becomes one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from router.observe.layout.part import Part, part_of
from router.observe.layout.units import Unit, Units

FindPart = Callable[[int], Part | None]


@dataclass(frozen=True, slots=True)
class Sketch:
    """One prompt without its text, in rendering order. `preamble` counts its leading system messages."""

    keys: tuple[tuple[str, str], ...]
    tools: tuple[Part, ...]
    messages: tuple[Part, ...]
    preamble: int
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sum(part.size for part in self.parts))

    @property
    def parts(self) -> tuple[Part, ...]:
        """Tools, then messages."""
        return self.tools + self.messages

    @property
    def conversation_bytes(self) -> int:
        """The size of all behind tools and system text."""
        return sum(part.size for part in self.messages[self.preamble :])


def sketch_of(
    units: Units, known: FindPart, keep_text: bool = False, pieced_characters: int | None = None
) -> Sketch:
    """Sketch a prompt; `known` gives a part by its digest where one is remembered, so that it costs less.

    Of text that is not known, `pieced_characters` at most are looked at closely, what comes first in the
    prompt first; the rest is known as a whole only.
    """
    left = sys.maxsize if pieced_characters is None else pieced_characters

    def sketched(unit: Unit) -> Part:
        nonlocal left
        rendered = unit.rendered()
        # The kind too: a paragraph of a prompt and a message are not the same part.
        digest = xxh3_64_intdigest(unit.kind.encode() + b"\xff" + rendered)
        part = known(digest)
        if part is None:
            part = part_of(unit, rendered, digest, left, keep_text)
            left = max(0, left - len(unit.text))
        return part

    tools = tuple(map(sketched, units.tools))
    return Sketch(units.keys, tools, tuple(map(sketched, units.messages)), units.preamble_count)
