"""What the caller asks and the mock replicas answer, byte for byte: each answer is held to its request.

A request's last message is a mark, `[[KIND NUMBER]]`, which no router changes, however it writes the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Literal

Kind = Literal["json", "held", "sse"]

MODEL = "mock"
# What a replica holds an answer of kind "held" for, and the pace of kind "sse".
HELD_SECONDS = 0.02
EVENT_SECONDS = 0.02
EVENTS = 50
# Words of the answer; then the end's reason, and [DONE].
_WORDS = EVENTS - 2
PREFIX_GROUPS = 8

_MARK = re.compile(rb"\[\[(json|held|sse) ([0-9]{12})\]\]")
_LONGEST_MARK = 32
_JSON = (
    b'{"id":"chatcmpl-%b","object":"chat.completion","created":1700000000,"model":"mock","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"The ring has a place for every prefix, and whoever asks again '
    b'finds it where it was left."},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":50,'
    b'"completion_tokens":24,"total_tokens":74},"system_fingerprint":"held-%b"}'
)
# Microseconds, nine digits, in front of `"}`.
_HELD = slice(-11, -2)
_CHUNK = (
    b'data: {"id":"chatcmpl-%b","object":"chat.completion.chunk","created":1700000000,"model":"mock",'
    b'"choices":[{"index":0,"delta":{%b},"finish_reason":%b}]}\n\n'
)
_USAGE = (
    b'data: {"id":"chatcmpl-%b","object":"chat.completion.chunk","created":1700000000,"model":"mock",'
    b'"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":48,"total_tokens":98}}\n\n'
)
_TEXT = (
    "a replica keeps what it has computed and the router sends each turn of a conversation to where the first"
    " tokens of its prompt are known so that only new text is computed while others wait for less order.\\n"
)


def number(count: int) -> bytes:
    """Return what a request goes by."""
    return b"%012d" % count


def read_mark(body: bytes) -> tuple[str, bytes] | None:
    """Return the kind of answer that is asked for, and the request's number; None if nothing is."""
    start = body.rfind(b"[[")
    found = _MARK.match(body[start : start + _LONGEST_MARK]) if start >= 0 else None
    return (found[1].decode(), found[2]) if found else None


def json_answer(of: bytes, held_microseconds: bytes) -> bytes:
    """Return the body of an answer; `held_microseconds` are nine digits."""
    return _JSON % (of, held_microseconds)


def read_held(answer: bytes, of: bytes) -> int | None:
    """Return for how many microseconds a replica held an answer; None if it is not the request's own."""
    held = answer[_HELD]
    return int(held) if held.isdigit() and answer == json_answer(of, held) else None


def stream_events(of: bytes, usage: bool) -> list[bytes]:
    """Return the events of a stream, EVENTS of them, and one more that tells usage if it was asked for."""
    events = [_CHUNK % (of, b'"content":" word%02d"' % word, b"null") for word in range(_WORDS)]
    events.append(_CHUNK % (of, b"", b'"stop"'))
    if usage:
        events.append(_USAGE % of)
    return [*events, b"data: [DONE]\n\n"]


def requests(kind: Kind, body_bytes: int, key: str, seed: int) -> tuple[Sequence[bytes], bytes]:
    """Return what requests of one size begin with, for each group of prompts, and what all end with.

    Between the two stands a number. The body is one system prompt, which a group shares but for its end.
    """
    draw = Random(seed)
    stream = b',"stream":true' if kind == "sse" else b""
    opening = b'{"model":"mock","messages":[{"role":"system","content":"'
    turn = b'"},{"role":"user","content":"[[%b ' % kind.encode()
    ending = b']]"}]%b}' % stream
    room = body_bytes - len(opening) - len(turn) - len(number(0)) - len(ending)
    if room < 1:
        raise ValueError(f"a body of {body_bytes} bytes has no room for a prompt")
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {body_bytes}\r\n\r\n"
    ).encode()
    return [head + opening + _prose(draw, room) + turn for _ in range(PREFIX_GROUPS)], ending


def _prose(draw: Random, length: int) -> bytes:
    """Return text as it stands in JSON: words, and a line's end now and then."""
    text = " ".join(draw.choices(_TEXT.split(), k=length // 2 + 1))[:length]
    # A backslash must not lose what it stands before.
    return (text[:-1] + "x" if text.endswith("\\") else text).encode()
