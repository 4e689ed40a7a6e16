"""Reads a body into the units of its prompt, in rendering order: tools, system text, messages.

OpenAI's chat and completion bodies and Anthropic's messages are read. Unlike the canonical prompt of the
chain, a unit keeps the order of JSON keys as sent, since that decides the tokens that an engine sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from router.chain.prompt import PromptError

MAX_UNITS = 4096

_PARAGRAPH = re.compile(r"\n\s*\n")
_PREAMBLE_ROLES = ("system", "developer")
# What makes the KV of equal text differ, by the field of the body that sets it.
_KEY_FIELDS = ("model", "cache_salt", "extra_key", "lora_request", "chat_template", "chat_template_kwargs")
# Fields of a message or a part that no template renders, and that change from request to request.
_UNRENDERED = frozenset({"role", "content", "id", "tool_call_id", "tool_use_id", "cache_control", "type"})


@dataclass(frozen=True, slots=True)
class Unit:
    """One tool, block of system text, message or paragraph. `index` is its position among its kind.

    `kind` is "tools", "system", "messages" or "prompt": the field of the body that holds it. `sorted_text`
    is the text with the keys of its JSON sorted, None where there is no JSON in it.
    """

    kind: str
    role: str
    index: int
    text: str
    sorted_text: str | None = None

    def rendered(self) -> bytes:
        """Return the bytes that stand for the unit in a prompt; no text can imitate their borders."""
        text = self.text.encode("utf-8", "surrogatepass")
        return self.role.encode("utf-8", "surrogatepass") + b"\xff" + text + b"\xfe"


@dataclass(frozen=True, slots=True)
class Units:
    """All of one prompt. `keys` pairs fields that two prompts must agree in to share, with digests."""

    keys: tuple[tuple[str, str], ...]
    tools: Sequence[Unit]
    messages: Sequence[Unit]

    @property
    def preamble_count(self) -> int:
        """How many leading messages are instructions of the application."""
        roles = [unit.role in _PREAMBLE_ROLES for unit in self.messages]
        return roles.index(False) if False in roles else len(roles)


def read_units(body: Mapping[str, Any]) -> Units:
    """Read a body; PromptError if it holds no prompt of text, or one of more than MAX_UNITS units."""
    keys = tuple((name, _digest(_plain(body[name]))) for name in _KEY_FIELDS if body.get(name) is not None)
    if "messages" in body:
        messages = [*_system(body.get("system")), *_messages(body["messages"])]
    elif "prompt" in body:
        messages = _paragraphs(body["prompt"])
    else:
        raise PromptError("the body has neither 'messages' nor 'prompt'", "messages")
    tools = _tools(body.get("tools"))
    if len(tools) + len(messages) > MAX_UNITS:
        raise PromptError(f"more than {MAX_UNITS} tools and messages", "messages")
    return Units(keys, tools, messages)


def _tools(tools: object) -> list[Unit]:
    if tools is None:
        return []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise PromptError("'tools' must be a list of objects", "tools")
    units = []
    for index, tool in enumerate(tools):
        shown = {name: value for name, value in tool.items() if name != "cache_control"}
        units.append(Unit("tools", "tool", index, _json(shown), _json(shown, sort=True)))
    return units


def _system(system: object) -> list[Unit]:
    """Read Anthropic's system prompt, a unit a block: clients put what changes into one of its own."""
    if system is None:
        return []
    blocks = system if isinstance(system, list) else [system]
    return [Unit("system", "system", index, _content(block)) for index, block in enumerate(blocks)]


def _messages(messages: object) -> Iterator[Unit]:
    if not isinstance(messages, list) or not messages:
        raise PromptError("'messages' must be a non-empty list", "messages")
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str):
            raise PromptError(f"'messages[{index}]' must be an object with a 'role'", f"messages[{index}]")
        text = _content(message.get("content"))
        rest = {
            name: _without_ids(value)
            for name, value in message.items()
            if name not in _UNRENDERED and value is not None
        }
        if not rest:
            yield Unit("messages", role, index, text, _sorted_if_json(text))
            continue
        yield Unit("messages", role, index, text + _json(rest), text + _json(rest, sort=True))


def _paragraphs(prompt: object) -> list[Unit]:
    """Cut a text prompt, at empty lines: where a text is changed, what stands behind is found again."""
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise PromptError("'prompt' is not one text", "prompt")
    starts = [0, *(border.end() for border in _PARAGRAPH.finditer(prompt))][:MAX_UNITS]
    ends = [*starts[1:], len(prompt)]
    pieces = [prompt[start:end] for start, end in zip(starts, ends, strict=True)]
    return [Unit("prompt", "text", index, piece) for index, piece in enumerate(pieces) if piece]


def _content(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_content(part) for part in content)
    if not isinstance(content, dict):
        raise PromptError("content must be text or parts", "messages")
    if isinstance(content.get("text"), str):
        return str(content["text"])
    if isinstance(content.get("thinking"), str):
        return str(content["thinking"])
    if "image_url" in content or "source" in content or "input_audio" in content:
        # Its size in tokens is not to be told from here; its identity is.
        return f"[{content.get('type')} {_digest(_json(content))}]"
    return _json({name: value for name, value in content.items() if name not in _UNRENDERED - {"content"}})


def _without_ids(value: object) -> object:
    """Leave out the ids of tool calls, which clients make up anew and few templates show."""
    if isinstance(value, list):
        return [
            {name: inner for name, inner in item.items() if name != "id"} if isinstance(item, dict) else item
            for item in value
        ]
    return value


def _sorted_if_json(text: str) -> str | None:
    stripped = text.lstrip()
    if not stripped.startswith(("{", "[")):
        return None
    try:
        return _json(orjson.loads(stripped), sort=True)
    except orjson.JSONDecodeError:
        return None


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _plain(value: object) -> str:
    return value if isinstance(value, str) else _json(value, sort=True)


def _json(value: object, sort: bool = False) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort else None).decode()
    except (orjson.JSONEncodeError, UnicodeEncodeError) as error:
        raise PromptError(f"the body holds what JSON cannot: {error}", "messages") from error
