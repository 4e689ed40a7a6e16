"""Compares a prompt with an earlier one that it should share with: every divergence, its cause and cost.

The walk goes along both prompts and mends each divergence as it meets it, so that the cost of one is what
mending it alone, after those in front of it, would bring: the bytes shared from there up to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from router.observe.layout.cause import Cause
from router.observe.layout.part import Part
from router.observe.layout.sketch import Sketch
from router.observe.layout.within import change_within

# What is shared behind a divergence counts from one block of text on, and in a conversation from a quarter
# of what either has left: a "thank you" in two chats is no layout.
LEAST_SHARED_BYTES = 64
_LEAST_SHARE = 4
_COMPARED_MESSAGES = 512
_PLACES_TRIED = 12
# Divergences of one prompt that are told apart: what comes behind would cost time and tell little.
_MOST_DIVERGENCES = 8
# Where a divergence is that no part of the later prompt shows.
_NOWHERE = {Cause.KEYS: ("keys", ""), Cause.TOOL_SET: ("tools", "tool")}
# Dropping one question and its answer is what a window does each turn.
_WINDOW_STEP_MESSAGES = 2


@dataclass(slots=True)
class Divergence:
    """One place where two prompts part. `at_bytes` of the later one come before it.

    `kind` and `index` name the unit in the body ("messages", 3), `character` counts within its text,
    `gain_bytes` is what both hold from here to the next divergence. `text` holds what stands there, before
    and now, where texts are kept.
    """

    cause: Cause
    detail: str
    kind: str
    role: str
    index: int
    character: int
    at_bytes: int
    gain_bytes: int = 0
    text: tuple[str, str] | None = None


@dataclass(slots=True)
class Comparison:
    """`common_bytes` are equal from the start on, then come the divergences."""

    common_bytes: int = 0
    divergences: list[Divergence] = field(default_factory=list)

    @property
    def shareable_bytes(self) -> int:
        """What both hold, wherever it stands."""
        return self.common_bytes + sum(divergence.gain_bytes for divergence in self.divergences)


def compare(before: Sketch, now: Sketch) -> Comparison:
    """Compare `now` with an earlier prompt."""
    return _Walk(before, now).run()


class _Walk:
    def __init__(self, before: Sketch, now: Sketch) -> None:
        self._before = before
        self._now = now
        self._result = Comparison()
        self._at = 0

    def run(self) -> Comparison:
        if self._before.keys != self._now.keys:
            differing = sorted({name for name, _ in set(self._before.keys) ^ set(self._now.keys)})
            self._open(Cause.KEYS, None, 0, 0, 0, ", ".join(differing))
        self._tools()
        self._messages()
        # Below one block nothing could have been found.
        self._result.divergences = [
            divergence
            for divergence in self._result.divergences
            if divergence.gain_bytes >= LEAST_SHARED_BYTES
        ]
        return self._result

    def _share(self, count: int) -> None:
        if self._result.divergences:
            self._result.divergences[-1].gain_bytes += count
        else:
            self._result.common_bytes += count

    def _open(
        self,
        cause: Cause,
        part: Part | None,
        index: int,
        character: int,
        before_bytes: int,
        detail: str = "",
        old: Part | None = None,
    ) -> None:
        """Note a divergence `before_bytes` into `part`, which begins where the walk stands."""
        text = None
        if part is not None and part.text is not None:
            text = (_around(old, character), _around(part, character))
        kind, role = (part.kind, part.role) if part is not None else _NOWHERE[cause]
        at = self._at + before_bytes
        if part is not None and kind == "messages":
            # Anthropic's system blocks stand beside the messages, and are not counted among them.
            index -= sum(one.kind == "system" for one in self._now.messages)
        self._result.divergences.append(Divergence(cause, detail, kind, role, index, character, at, 0, text))

    def _tools(self) -> None:
        before, now = self._before.tools, self._now.tools
        first = _equal_run(before, now)
        same = sum(part.size for part in now[:first])
        self._share(same)
        self._at += same
        if first == len(before) == len(now):
            return
        old, new = before[first:], now[first:]
        part = new[0] if new else None
        cause = _tool_cause(old, new)
        detail = ""
        where, inside = 0, 0
        if cause is None and part is not None:
            change = change_within(old[0], part)
            cause, where, inside = change.cause, change.character, change.before_bytes
        if part is None:
            # All tools of this prompt are there, and those that stood behind them are not.
            self._open(Cause.TOOL_SET, None, first, 0, 0, f"tools[{first}] is gone")
        else:
            self._share(inside)
            self._open(cause or Cause.TOOL_SET, part, first, where, inside, detail, old[0] if old else None)
            self._share(max(0, _shared(old, new) - inside))
        self._at += sum(one.size for one in new)

    def _messages(self) -> None:
        before, now = self._before.messages, self._now.messages
        left = right = 0
        while left < len(before) and right < len(now) and len(self._result.divergences) < _MOST_DIVERGENCES:
            old, new = before[left], now[right]
            if old.digest == new.digest:
                self._share(new.size)
            elif _alike(old, new):
                self._change(old, new, right)
            else:
                dropped, added = self._structure(left, right)
                if (dropped, added) == (0, 0):
                    return
                self._at += sum(part.size for part in now[right : right + added])
                left, right = left + dropped, right + added
                continue
            self._at += new.size
            left, right = left + 1, right + 1

    def _change(self, old: Part, new: Part, index: int, cause: Cause | None = None) -> int:
        """Note what differs between two parts in one place; return the bytes that they share behind it."""
        change = change_within(old, new)
        self._share(change.before_bytes)
        self._open(cause or change.cause, new, index, change.character, change.before_bytes, old=old)
        self._share(change.behind_bytes)
        return change.behind_bytes

    def _structure(self, left: int, right: int) -> tuple[int, int]:
        """Find where two conversations go on together; return how far to step in each, (0, 0) for nowhere."""
        before, now = self._before.messages[left:], self._now.messages[right:]
        old, new = before[0], now[0]
        preamble = right < self._now.preamble and left < self._before.preamble
        dropped, added, run = _resynchronise(before, now)
        least = min(sum(part.size for part in before), sum(part.size for part in now)) // _LEAST_SHARE
        if run >= max(LEAST_SHARED_BYTES, least):
            if dropped == added:
                self._replaced(left, right, added, preamble)
                return dropped, added
            if dropped == 0:
                self._open(Cause.RETRIEVAL, new, right, 0, 0, old=old)
                return dropped, added
            detail = "cut" if added == 0 else "summarised"
            self._open(self._cut(left, dropped, added), new, right, 0, 0, detail, old)
            return dropped, added
        if (mixed := _shared(before, now)) >= max(LEAST_SHARED_BYTES, least):
            self._open(Cause.EXAMPLES, new, right, 0, 0, old=old)
            self._share(mixed)
            return 0, 0
        if old.role == new.role:
            change = change_within(old, new)
            if change.behind_bytes >= LEAST_SHARED_BYTES or preamble:
                self._change(old, new, right)
                return (1, 1) if preamble else (0, 0)
            self._share(change.before_bytes)
        return 0, 0

    def _replaced(self, left: int, right: int, count: int, preamble: bool) -> None:
        """Note messages that stand in the place of as many others, the same ones following."""
        old, new = self._before.messages[left], self._now.messages[right]
        if count > 1:
            roles = {part.role for part in self._now.messages[right : right + count]}
            cause = Cause.EXAMPLES if "assistant" in roles else Cause.RETRIEVAL
            self._open(cause, new, right, 0, 0, old=old)
            return
        front = preamble or right == self._now.preamble
        if old.role != new.role:
            self._open(Cause.RETRIEVAL if front else Cause.REWRITTEN, new, right, 0, 0, old=old)
        else:
            self._change(old, new, right, None if front else Cause.REWRITTEN)

    def _cut(self, left: int, dropped: int, added: int) -> Cause:
        """Name the cause of a history that is shorter than it was; how often it was cut is told later."""
        behind = len(self._before.messages) - left - dropped
        if added == 0 and left > self._before.preamble and behind <= _WINDOW_STEP_MESSAGES:
            return Cause.REWRITTEN
        if added == 0 and dropped <= _WINDOW_STEP_MESSAGES:
            return Cause.SLIDING_WINDOW
        return Cause.COMPACTION


def _alike(old: Part, new: Part) -> bool:
    return old.role == new.role and (
        old.skeleton == new.skeleton or old.ordered == new.ordered or old.spaced == new.spaced
    )


def _equal_run(before: Sequence[Part], now: Sequence[Part]) -> int:
    count = 0
    for old, new in zip(before, now, strict=False):
        if old.digest != new.digest:
            break
        count += 1
    return count


def _tool_cause(old: Sequence[Part], new: Sequence[Part]) -> Cause | None:
    """Compare two lists of tools from where they part; None for one tool that changed in its place."""
    if Counter(part.digest for part in old) == Counter(part.digest for part in new):
        return Cause.TOOL_ORDER
    if Counter(part.ordered for part in old) == Counter(part.ordered for part in new):
        return None if old[0].ordered == new[0].ordered else Cause.TOOL_ORDER
    if len(old) == len(new) and _alike(old[0], new[0]):
        return None
    return Cause.TOOL_SET


def _shared(before: Sequence[Part], now: Sequence[Part]) -> int:
    """Return the bytes of the parts that both hold, in any order and with JSON keys in any order."""
    left = Counter(part.ordered for part in before)
    shared = 0
    for part in now:
        if left[part.ordered] > 0:
            left[part.ordered] -= 1
            shared += part.size
    return shared


def _resynchronise(before: Sequence[Part], now: Sequence[Part]) -> tuple[int, int, int]:
    """Return how many messages to skip in each until they agree best, and the bytes that agree then."""
    places: dict[int, list[int]] = {}
    for index, part in enumerate(before):
        found = places.setdefault(part.skeleton, [])
        if len(found) < _PLACES_TRIED:
            found.append(index)
    best, tried = (0, 0, 0), 0
    for added, part in enumerate(now):
        for dropped in places.get(part.skeleton, ()):
            pairs = zip(before[dropped:], now[added : added + _COMPARED_MESSAGES], strict=False)
            agreed = sum(one.size for old, one in pairs if old.skeleton == one.skeleton)
            if agreed > best[2]:
                best = (dropped, added, agreed)
            tried += 1
        if tried >= _PLACES_TRIED:
            break
    return best


def _around(part: Part | None, character: int) -> str:
    if part is None or part.text is None:
        return ""
    return part.text[max(0, character - 20) : character + 60]
