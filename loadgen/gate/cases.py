"""What the gate asks, the same in every run: the bodies of a file, or conversations made from a seed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from loadgen.gate.options import GateOptions
from loadgen.traces.request_log import CHAT_PATH, MESSAGES_PATH, BadLines, read_requests
from loadgen.workloads.multi_turn import MultiTurn
from loadgen.workloads.session import Ask

MAX_CASES = 10_000

Asking = Generator["CaseRequest", str, None]


class CaseError(ValueError):
    """The cases cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class CaseRequest:
    """One request: the path of the API it goes to, and its body."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cases:
    """A row of requests. `asking()` yields them anew, and is sent the text of each answer.

    `fingerprint` tells rows apart, so that a baseline is only held against its own.
    """

    asking: Callable[[], Asking]
    fingerprint: str


def cases_of_file(path: Path) -> Cases:
    """Read a request log; TraceError if it is none, CaseError if it has more than MAX_CASES requests."""
    requests = [
        CaseRequest(logged.path, _plain(logged.body))
        for logged in islice(read_requests(path, BadLines(limit=0)), MAX_CASES + 1)
    ]
    if len(requests) > MAX_CASES:
        raise CaseError(f"{path} has more than {MAX_CASES:,} requests")

    def asking() -> Asking:
        # Not `yield from`: a list cannot be sent the answers.
        for request in requests:  # noqa: UP028
            yield request

    return Cases(asking, _fingerprint([[request.path, request.body] for request in requests]))


def built_in_cases(options: GateOptions, model: str) -> Cases:
    """Make conversations under one system prompt, each turn with the whole history and the real answers."""
    anthropic = options.api == "anthropic"

    def asking() -> Asking:
        sizes = (options.turns, options.turn_tokens, options.system_tokens)
        workload = MultiTurn(Ask(model, options.answer_tokens), options.seed, *sizes)
        for session in islice(workload.sessions(), options.conversations):
            answer: str | None = None
            while (body := session.next_body(answer)) is not None:
                answer = yield _messages_api(body) if anthropic else CaseRequest(CHAT_PATH, body)

    names = ("api", "conversations", "turns", "turn_tokens", "system_tokens", "answer_tokens", "seed")
    return Cases(asking, _fingerprint(["multi_turn", options.model_dump(include=set(names))]))


def _messages_api(body: dict[str, Any]) -> CaseRequest:
    """Put a chat into Anthropic's form, which caches only up to where it is told."""
    mark = {"cache_control": {"type": "ephemeral"}}
    system, *messages = body["messages"]
    turns = [dict(message) for message in messages]
    turns[-1]["content"] = [{"type": "text", "text": turns[-1]["content"], **mark}]
    rest = {name: value for name, value in body.items() if name != "messages"}
    blocks = [{"type": "text", "text": system["content"], **mark}]
    return CaseRequest(MESSAGES_PATH, {**rest, "system": blocks, "messages": turns})


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    """Leave streaming out: the usage is the same, and stands in one place."""
    return {name: value for name, value in body.items() if name not in ("stream", "stream_options")}


def _fingerprint(value: object) -> str:
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
