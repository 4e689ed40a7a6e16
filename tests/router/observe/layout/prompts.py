"""Prompts for tests of layouts: text that repeats nowhere, and bodies of one conversation turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from router.observe.layout.sketch import FindPart, Sketch, sketch_of
from router.observe.layout.units import read_units

_WORDS = ("sea", "salt", "river", "stone", "lamp", "cloud", "paper", "window", "garden", "bridge", "copper")

Message = dict[str, Any]


def prose(seed: str, sentences: int) -> str:
    """Return text without a digit; the same seed gives the same, another shares nothing with it."""
    random = Random(seed)
    made = []
    for number in range(sentences):
        words = [random.choice(_WORDS) for _ in range(8)]
        made.append(f"{seed.capitalize()} {' '.join(words)} {chr(97 + number % 26) * 3}.")
    return " ".join(made)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def chat(turns: int, name: str = "chat") -> list[Message]:
    """Return the messages of a conversation: `turns` questions, with the answers between them."""
    messages: list[Message] = []
    for turn in range(turns):
        label = name + "abcdefghijklmnopqrstuvwxyz"[turn]
        if turn:
            messages.append(assistant(prose(f"answer{label}", 4)))
        messages.append(user(prose(f"question{label}", 3)))
    return messages


def body(messages: Sequence[Message], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **fields}


def conversation(
    turns: int, first: Callable[[int], Sequence[Message]], **fields: Any
) -> list[dict[str, Any]]:
    """Return the bodies of a conversation, each with `first(turn)` ahead of it."""
    return [body([*first(turn), *chat(turn + 1)], **fields) for turn in range(turns)]


def tool(name: str, **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}, "depth": {"type": "integer"}}}
    return {
        "type": "function",
        "function": {"name": name, "description": prose(name, 3), "parameters": parameters, **more},
    }


def size(*messages: Message) -> int:
    """Return the bytes that messages of text take in a rendered prompt."""
    return sum(len(message["role"]) + len(message["content"].encode()) + 2 for message in messages)


def sketch_body(body: Mapping[str, Any], known: FindPart, keep_text: bool = False) -> Sketch:
    """Read and sketch a body; PromptError if it holds no prompt of text."""
    return sketch_of(read_units(body), known, keep_text)
