"""Usage in the shapes of both APIs: what is cached, what the whole is, and what is not told."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.gate.usage import Usage, UsageError, answer_text, read_usage


@pytest.mark.parametrize(
    ("usage", "read"),
    [
        ({"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64}}, Usage(100, 64)),
        ({"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 0}}, Usage(100, 0)),
        ({"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": None}}, Usage(100, None)),
        ({"prompt_tokens": 100, "prompt_tokens_details": None}, Usage(100, None)),
        ({"prompt_tokens": 100}, Usage(100, None)),
        # The responses API: the cached tokens are among the input tokens.
        ({"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}}, Usage(100, 64)),
        # Anthropic: they are not.
        (
            {"input_tokens": 36, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 20},
            Usage(120, 64),
        ),
        ({"input_tokens": 36, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}, Usage(36, 0)),
        ({"input_tokens": 36, "cache_creation_input_tokens": 64}, Usage(100, 0)),
        ({"input_tokens": 36, "cache_read_input_tokens": None}, Usage(36, None)),
        ({"input_tokens": 36}, Usage(36, None)),
    ],
)
def test_shapes(usage: dict[str, Any], read: Usage) -> None:
    assert read_usage({"usage": usage}) == read


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"usage": None},
        {"usage": {}},
        {"usage": {"prompt_tokens": 0}},
        {"usage": {"prompt_tokens": -1}},
        {"usage": {"prompt_tokens": "100"}},
        {"usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 101}}},
        {"usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 1.5}}},
        {"usage": {"input_tokens": True}},
    ],
)
def test_what_is_no_usage(answer: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        read_usage(answer)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"choices": [{"message": {"content": "Salt."}}]}, "Salt."),
        ({"choices": [{"message": {"content": None}}]}, ""),
        ({"choices": [{"text": "Salt."}]}, "Salt."),
        ({"choices": []}, ""),
        ({"content": [{"type": "text", "text": "Sa"}, {"type": "text", "text": "lt."}]}, "Salt."),
        ({"content": "?"}, ""),
        ({}, ""),
    ],
)
def test_text_of_an_answer(answer: dict[str, Any], text: str) -> None:
    assert answer_text(answer) == text
