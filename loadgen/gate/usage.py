"""Reads the hit of one answer from its usage, in the shapes of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class UsageError(ValueError):
    """An answer has no usage that can be read; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one prompt. `cached_tokens` is None where the answer does not say: that is not zero."""

    prompt_tokens: int
    cached_tokens: int | None


def read_usage(answer: Mapping[str, Any]) -> Usage:
    """Read a whole (not streamed) answer; UsageError if it has no usage or an impossible one.

    OpenAI's `prompt_tokens` (`input_tokens` in its responses API) holds the cached tokens; Anthropic's
    `input_tokens` does not, nor what was written to the cache.
    """
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        raise UsageError("the answer has no usage")
    if "prompt_tokens" in usage:
        read = _included(usage, "prompt_tokens", "prompt_tokens_details")
    elif answer.get("object") == "response" or "input_tokens_details" in usage:
        read = _included(usage, "input_tokens", "input_tokens_details")
    elif "input_tokens" in usage:
        read = _apart(usage)
    else:
        raise UsageError("the usage has neither prompt_tokens nor input_tokens")
    if read.prompt_tokens < 1 or (read.cached_tokens or 0) > read.prompt_tokens:
        raise UsageError(f"the usage says {read.cached_tokens} of {read.prompt_tokens} tokens were cached")
    return read


def _included(usage: Mapping[str, Any], total: str, details: str) -> Usage:
    inner = usage.get(details)
    cached = _count(inner, "cached_tokens") if isinstance(inner, dict) else None
    return Usage(_count(usage, total) or 0, cached)


def _apart(usage: Mapping[str, Any]) -> Usage:
    read = _count(usage, "cache_read_input_tokens")
    written = _count(usage, "cache_creation_input_tokens")
    rest = _count(usage, "input_tokens") or 0
    cached = None if read is None and written is None else (read or 0)
    return Usage(rest + (read or 0) + (written or 0), cached)


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"the usage has {name} = {value!r}")
    return value


def answer_text(answer: Mapping[str, Any]) -> str:
    """Return the text of an answer, for the next turn of its conversation; empty if there is none."""
    try:
        if "choices" in answer:
            choice = answer["choices"][0]
            return str((choice.get("message") or {}).get("content") or choice.get("text") or "")
        return "".join(str(part.get("text", "")) for part in answer["content"])
    except (AttributeError, LookupError, TypeError):
        return ""
