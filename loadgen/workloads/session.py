"""What a workload is made of: sessions, each of which says what it asks next once it has its last answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol


class Session(Protocol):
    """One user's conversation."""

    @property
    def name(self) -> str:
        """Tells sessions of one run apart."""

    def next_body(self, answer: str | None) -> dict[str, Any] | None:
        """Return the next request's body, None at the end. `answer` is the last one's text, None at first."""


class Workload(Protocol):
    """A seeded, endless row of sessions: the same seed and options give the same sessions."""

    @property
    def turns(self) -> int:
        """Requests that a session asks if none of them fails."""

    def sessions(self) -> Iterator[Session]:
        """Begin the row anew."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What all requests of a run share: the model's name and how long answers may be, in tokens."""

    model: str
    answer_tokens: int = 16

    def body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """Return a chat request's body. Greedy, so that two runs ask alike."""
        return {
            "model": self.model,
            "messages": messages,
            "max_tokens": self.answer_tokens,
            "temperature": 0,
        }


class Conversation:
    """A session whose turns each carry the whole history, with the answers that were really given."""

    def __init__(self, name: str, ask: Ask, system: str, questions: Iterator[str]) -> None:
        self._name = name
        self._ask = ask
        self._messages = [{"role": "system", "content": system}]
        self._questions = questions

    @property
    def name(self) -> str:
        """Tells sessions of one run apart."""
        return self._name

    def next_body(self, answer: str | None) -> dict[str, Any] | None:
        """Return the next turn's body, with `answer` in its history; None once all questions are asked."""
        if answer is not None:
            self._messages.append({"role": "assistant", "content": answer})
        question = next(self._questions, None)
        if question is None:
            return None
        self._messages.append({"role": "user", "content": question})
        return self._ask.body(list(self._messages))


def source(seed: int, *path: str | int) -> Random:
    """A random source of its own for one part of a run, so that parts do not shift one another."""
    return Random("/".join(str(part) for part in (seed, *path)))
