"""Conversations under one shared system prompt: each turn brings new text and the whole history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from loadgen.workloads.prose import Prose
from loadgen.workloads.session import Ask, Conversation, source


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """`turns` turns a conversation, `turn_tokens` of new text in each, `system_tokens` shared by all."""

    ask: Ask
    seed: int = 0
    turns: int = 8
    turn_tokens: int = 300
    system_tokens: int = 300

    def sessions(self) -> Iterator[Conversation]:
        """Begin the row of conversations anew."""
        system = "You are a helpful assistant. Answer in one short sentence. This is what you know. "
        system += Prose(source(self.seed, "system")).paragraph(self.system_tokens)
        for index in count():
            yield Conversation(f"chat-{index}", self.ask, system, self._questions(index))

    def _questions(self, index: int) -> Iterator[str]:
        prose = Prose(source(self.seed, "chat", index))
        for _ in range(self.turns):
            yield f"{prose.paragraph(self.turn_tokens)} {prose.question()}"
