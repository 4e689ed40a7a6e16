"""Makes a run cold: marks its prompts so that no earlier run's blocks are found, and its own are."""

from __future__ import annotations

from typing import Any, Literal

from loadgen.gate.cases import CaseError, CaseRequest
from loadgen.traces.request_log import MESSAGES_PATH, RESPONSES_PATH

Cold = Literal["line", "salt", "off"]


def made_cold(request: CaseRequest, mark: str, how: Cold) -> dict[str, Any]:
    """Return the body with the run's mark; CaseError where the prompt has no place for it."""
    if how == "off":
        return request.body
    body = dict(request.body)
    if how == "salt":
        body["cache_salt"] = f"{body.get('cache_salt') or 'gate'}-{mark}"
        return body
    line = f"Run {mark}.\n"
    if request.path == MESSAGES_PATH:
        body["system"] = _before(body.get("system"), line)
    elif request.path == RESPONSES_PATH:
        body["instructions"] = line + (body.get("instructions") or "")
    elif isinstance(body.get("messages"), list):
        body["messages"] = _messages(body["messages"], line)
    else:
        body["prompt"] = _prompt(body.get("prompt"), line)
    return body


def _messages(messages: list[Any], line: str) -> list[Any]:
    first = messages[0] if messages else None
    if isinstance(first, dict) and first.get("role") in ("system", "developer"):
        return [{**first, "content": _before(first.get("content"), line)}, *messages[1:]]
    return [{"role": "system", "content": line}, *messages]


def _before(content: object, line: str) -> object:
    if isinstance(content, list):
        return [{"type": "text", "text": line}, *content]
    return line + (content if isinstance(content, str) else "")


def _prompt(prompt: object, line: str) -> object:
    if isinstance(prompt, str):
        return line + prompt
    if isinstance(prompt, list) and prompt and all(isinstance(one, str) for one in prompt):
        return [line + one for one in prompt]
    raise CaseError("a prompt of token ids has no first line; use --cold salt or --cold off")
