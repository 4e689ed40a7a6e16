"""The canonical prompt: what of a request body decides the tokens of its prompt."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from router.chain.chain import pack_tokens
from router.chain.keys import Keys

MAX_SALT_CHARACTERS = 128

# Separators that cannot occur in UTF-8, so that no content can imitate a border between messages.
_FIELD = b"\xff"
_END = b"\xfe"


class PromptError(ValueError):
    """The body is not a request of this kind. `field` names the offending one."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


# Of messages that are instructions of the application, not of the conversation.
_PREAMBLE_ROLES = ("system", "developer")

# What decides a chat's tokens beside its messages and tools; most requests have none of it.
_CHAT_OPTIONS = frozenset(
    {
        "add_generation_prompt",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
    }
)
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
_PLAIN_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {"add_generation_prompt": True, "continue_final_message": False}
)


class CanonicalPrompt(NamedTuple):
    """A prompt before it is rendered. Just one of `messages`, `text` and `tokens` is not None.

    `renderable` is false where text alone does not tell the tokens: pictures, or a template of the
    request's own.
    """

    keys: Keys
    messages: Sequence[Mapping[str, Any]] | None = None
    text: str | None = None
    tokens: Sequence[int] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    template_options: Mapping[str, Any] = _NO_OPTIONS
    add_special_tokens: bool = False
    renderable: bool = True

    @property
    def preamble_messages(self) -> int:
        """How many leading messages are instructions of the application, not of the conversation."""
        count = 0
        for message in self.messages or ():
            if message["role"] not in _PREAMBLE_ROLES:
                break
            count += 1
        return count


def chat_prompt(body: Mapping[str, Any]) -> CanonicalPrompt:
    """Read the body of /v1/chat/completions; PromptError if it is not one."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise PromptError("'messages' must be a non-empty list", "messages")
    read, plain = _messages(messages)
    tools = body.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise PromptError("'tools' must be a list of objects", "tools")
    if _CHAT_OPTIONS.isdisjoint(body):
        return CanonicalPrompt(_keys(body), read, None, None, tools or None, _PLAIN_OPTIONS, False, plain)
    options = body.get("chat_template_kwargs") or {}
    if not isinstance(options, dict):
        raise PromptError("'chat_template_kwargs' must be an object", "chat_template_kwargs")
    return CanonicalPrompt(
        keys=_keys(body),
        messages=read,
        tools=tools or None,
        template_options={
            "add_generation_prompt": _flag(body, "add_generation_prompt", True),
            "continue_final_message": _flag(body, "continue_final_message", False),
            **options,
        },
        add_special_tokens=_flag(body, "add_special_tokens", False),
        renderable=plain
        and body.get("chat_template") is None
        and not _flag(body, "continue_final_message", False),
    )


def completion_prompts(body: Mapping[str, Any]) -> list[CanonicalPrompt]:
    """Read the body of /v1/completions: text, token ids, or a list of either; PromptError if it is none."""
    return [_completion_prompt(one, body) for one in _several(body)]


def first_completion_prompt(body: Mapping[str, Any]) -> CanonicalPrompt:
    """Read the first prompt of such a body alone: a list may be long, and the others are not looked at."""
    return _completion_prompt(_several(body)[0], body)


def canonical_pieces(prompt: CanonicalPrompt) -> tuple[list[bytes], int]:
    """Return the prompt in rendering order, a piece a message, and the length of its preamble in bytes.

    For a chain over bytes, where tokens cannot be had: a conversation's next turn extends the pieces.
    """
    if prompt.text is not None:
        return [b"text" + _FIELD + prompt.text.encode()], 0
    if prompt.tokens is not None:
        return [pack_tokens(prompt.tokens)], 0
    messages = prompt.messages or ()
    pieces = [b"".join(_tools_parts(prompt)), *(b"".join(_message_parts(message)) for message in messages)]
    count = prompt.preamble_messages
    # The role of the first message behind it is the same in every conversation, too.
    header = _header_bytes(messages[count]) if count < len(messages) else 0
    return pieces, sum(map(len, pieces[: 1 + count])) + header


def canonical_bytes(prompt: CanonicalPrompt) -> tuple[bytes, int]:
    """Return what `canonical_pieces` does in one run of bytes: no text is copied but into that."""
    if prompt.messages is None:
        (piece,), preamble = canonical_pieces(prompt)
        return piece, preamble
    parts = [*_tools_parts(prompt)]
    preamble = 0
    for message in prompt.messages:
        if not preamble and message["role"] not in _PREAMBLE_ROLES:
            preamble = sum(map(len, parts)) + _header_bytes(message)
        content = message.get("content")
        if len(message) == 2 and isinstance(content, str):
            # As nearly all are.
            parts += (message["role"].encode(), _FIELD, content.encode(), _END)
        else:
            parts += _message_parts(message)
    data = b"".join(parts)
    return data, preamble or len(data)


def _tools_parts(prompt: CanonicalPrompt) -> tuple[bytes, ...]:
    return b"chat\xff", _sorted_json(prompt.tools) if prompt.tools else b"", _END


def _message_parts(message: Mapping[str, Any]) -> Sequence[bytes]:
    content = message.get("content")
    text = content.encode() if isinstance(content, str) else _sorted_json(content)
    parts = [message["role"].encode(), _FIELD, text]
    for key in sorted(message.keys() - {"role", "content"}):
        parts += [_FIELD, key.encode(), _FIELD, _sorted_json(message[key])]
    return *parts, _END


def _header_bytes(message: Mapping[str, Any]) -> int:
    """Return the length of what begins a message, which is the same in every conversation."""
    return len(message["role"].encode()) + len(_FIELD)


def _several(body: Mapping[str, Any]) -> list[Any]:
    prompt = body.get("prompt")
    return prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else [prompt]


def _completion_prompt(prompt: object, body: Mapping[str, Any]) -> CanonicalPrompt:
    keys = _keys(body)
    if isinstance(prompt, str) and prompt:
        special = _flag(body, "add_special_tokens", True)
        return CanonicalPrompt(keys=keys, text=prompt, add_special_tokens=special)
    if isinstance(prompt, list) and prompt:
        try:
            # Checked and packed in C: a prompt may be a million ids.
            return CanonicalPrompt(keys=keys, tokens=array("I", prompt))
        except (TypeError, OverflowError):
            pass
    raise PromptError("'prompt' must be text, token ids, or a list of either, and not empty", "prompt")


def _messages(messages: list[Any]) -> tuple[list[Any], bool]:
    """Return the messages as a template sees them, and whether text is all they hold."""
    for message in messages:
        if (
            not isinstance(message, dict)
            or not isinstance(message.get("content"), str)
            or not isinstance(message.get("role"), str)
            or "tool_calls" in message
        ):
            break
    else:
        # As nearly all are: seen as they were sent.
        return messages, True
    read = [_message(message, position) for position, message in enumerate(messages)]
    return [message for message, _ in read], all(plain for _, plain in read)


def _message(message: object, position: int) -> tuple[dict[str, Any], bool]:
    """Return the message as a template sees it, and whether text is all it holds."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise PromptError(f"'messages[{position}]' must be an object with a 'role'", f"messages[{position}]")
    content = message.get("content")
    if isinstance(content, list):
        texts = [_text_part(part, position) for part in content]
        if any(text is None for text in texts):
            return message, False
        content = "\n".join(text for text in texts if text is not None)
    elif content is None:
        content = ""
    elif not isinstance(content, str):
        raise PromptError(
            f"'messages[{position}].content' must be text or parts", f"messages[{position}].content"
        )
    elif "tool_calls" not in message:
        return message, True
    read = {**message, "content": content}
    if message.get("tool_calls") is not None:
        read["tool_calls"] = _tool_calls(message["tool_calls"], position)
    return read, True


def _text_part(part: object, position: int) -> str | None:
    """Return a part's text, or None for a part of another kind."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise PromptError(
            f"'messages[{position}].content' holds a part without a 'type'", f"messages[{position}].content"
        )
    if part["type"] not in ("text", "input_text", "output_text"):
        return None
    text = part.get("text")
    if not isinstance(text, str):
        raise PromptError(
            f"'messages[{position}].content' holds a text part without text", f"messages[{position}].content"
        )
    return text


def _tool_calls(calls: object, position: int) -> list[dict[str, Any]]:
    """Parse the arguments, which clients send as JSON text and templates render as objects."""
    where = f"messages[{position}].tool_calls"
    if not isinstance(calls, list):
        raise PromptError(f"'{where}' must be a list", where)
    read = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise PromptError(f"'{where}' holds a call without a function name", where)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = orjson.loads(arguments) if arguments else {}
            except orjson.JSONDecodeError as error:
                raise PromptError(f"'{where}' holds arguments that are not JSON", where) from error
        read.append({**call, "function": {**function, "arguments": arguments}})
    return read


def _keys(body: Mapping[str, Any]) -> Keys:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise PromptError("'model' must be the name of a model", "model")
    salt = body.get("cache_salt")
    if salt is not None and not (isinstance(salt, str) and 0 < len(salt) <= MAX_SALT_CHARACTERS):
        raise PromptError(f"'cache_salt' must be text of 1 to {MAX_SALT_CHARACTERS} characters", "cache_salt")
    return Keys(model, None, None, salt)


def _flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name, default)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise PromptError(f"'{name}' must be true or false", name)
    return value


def _sorted_json(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
