"""Single questions under one long system prompt, as a product's assistant gets them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from loadgen.workloads.prose import Prose
from loadgen.workloads.session import Ask, Conversation, source


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """`system_tokens` shared by all sessions, each of one question with `question_tokens` of its own text."""

    ask: Ask
    seed: int = 0
    system_tokens: int = 1000
    question_tokens: int = 60

    @property
    def turns(self) -> int:
        """Requests a session."""
        return 1

    def sessions(self) -> Iterator[Conversation]:
        """Begin the row of questions anew."""
        system = "You are a helpful assistant. Answer in one short sentence. This is what you know. "
        system += Prose(source(self.seed, "system")).paragraph(self.system_tokens)
        for index in count():
            prose = Prose(source(self.seed, "question", index))
            question = f"{prose.paragraph(self.question_tokens)} {prose.question()}"
            yield Conversation(f"question-{index}", self.ask, system, iter((question,)))
