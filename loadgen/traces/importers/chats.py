"""Imports ShareGPT-style chats: a request for each answer, with all messages before it as its prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from loadgen.traces.importers.arrivals import ArrivalOptions, Arrivals
from loadgen.traces.importers.naming import PromptNaming
from loadgen.traces.lines import first_byte, read_lines, read_whole, stem
from loadgen.traces.request_log import CHAT_PATH, BadLines
from loadgen.traces.trace import Trace, TraceError, TraceRequest

MAX_CHATS = 500_000
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "tool": "tool",
}


def import_chats(
    path: Path,
    naming: PromptNaming,
    arrivals: ArrivalOptions,
    max_chats: int = MAX_CHATS,
    bad: BadLines | None = None,
) -> Trace:
    """Return the trace of a file of chats: {"conversations": [{"from", "value"}, ...]}.

    The file is a JSON list of them, or has one a line; plain, gzipped or xz-compressed. Chats begin at
    random, and a turn follows the answer to the last one after a pause. Only the first `max_chats` are read.
    TraceError if the file cannot be read, has too many bad chats, or no turn.
    """
    bad = bad if bad is not None else BadLines()
    times = Arrivals(arrivals)
    requests: list[TraceRequest] = []
    for number, (place, chat) in enumerate(_chats(path)):
        if number >= max_chats:
            break
        try:
            requests += _turns(chat, str(number), naming, times)
        except TraceError as error:
            bad.add(place, str(error))
    if not requests:
        raise TraceError(f"{path} has no chat with an answer{': ' + bad.first[0] if bad.first else ''}")
    requests.sort(key=lambda request: request.arrival_seconds)
    return Trace(stem(path), naming.block_tokens, requests)


def _turns(chat: object, session: str, naming: PromptNaming, times: Arrivals) -> list[TraceRequest]:
    messages = _messages(chat)
    requests: list[TraceRequest] = []
    arrival = times.begin()
    for position, message in enumerate(messages):
        if message["role"] != "assistant" or not position:
            continue
        body = {"model": "chat", "messages": messages[:position]}
        output_tokens = naming.text_tokens(message["content"])
        requests.append(naming.request(CHAT_PATH, body, arrival, output_tokens, session))
        arrival = times.after(arrival, output_tokens)
    return requests


def _messages(chat: object) -> list[dict[str, str]]:
    if not isinstance(chat, Mapping):
        raise TraceError("a chat is an object with 'conversations'")
    said = chat.get("conversations", chat.get("conversation"))
    if not isinstance(said, list):
        raise TraceError("'conversations' must be a list")
    return [_message(message) for message in said]


def _message(message: object) -> dict[str, str]:
    if isinstance(message, Mapping):
        role = _ROLES.get(str(message.get("from")))
        content = message.get("value")
        if role is not None and isinstance(content, str):
            return {"role": role, "content": content}
    raise TraceError("each of 'conversations' must have a known 'from' and a 'value' of text")


def _chats(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (where it stands, chat) of a JSON list or of JSON lines."""
    if first_byte(path) == b"[":
        try:
            chats = orjson.loads(read_whole(path))
        except orjson.JSONDecodeError as error:
            raise TraceError(f"{path} is not JSON: {error}") from error
        for number, chat in enumerate(chats, 1):
            yield f"{path}, chat {number}", chat
        return
    for number, line in read_lines(path):
        try:
            chat = orjson.loads(line)
        except orjson.JSONDecodeError:
            # Told as a chat that is none, so that it is counted as one.
            chat = None
        yield f"{path}:{number}", chat
