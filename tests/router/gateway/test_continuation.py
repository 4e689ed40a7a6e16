"""Which streams may be continued at all."""

from __future__ import annotations

from typing import Any

import pytest

from router.gateway.continuation import journal_of, resumable

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 1, "logprobs": False, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"n": None, "logprobs": None, "tools": None},
        {"stop": ["x"], "temperature": 1, "seed": 3, "presence_penalty": 1, "max_tokens": 5},
        {"prompt": "x"},
        {"prompt": [1, 2]},
        {"prompt": []},
    ],
)
def test_one_text_that_is_streamed(fields: dict[str, Any]) -> None:
    assert resumable(CHAT, {**BODY, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": False},
        {"stream": 1},
        {"stream": None},
        {"n": 2},
        {"n": True},
        {"best_of": 3},
        {"logprobs": True},
        {"logprobs": 0},
        {"top_logprobs": 2},
        {"prompt_logprobs": 0},
        {"echo": True},
        {"suffix": "x"},
        {"tools": [{"type": "function"}]},
        {"tool_choice": "auto"},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "x"}},
        {"guided_json": {}},
        {"use_beam_search": True},
        {"modalities": ["text", "audio"]},
        {"return_token_ids": True},
        {"return_token_ids": False},
        {"return_token_ids": None},
        {"kvring_resume": None},
        {"kvring_resume": {}},
        {"prompt": ["x"]},
        {"prompt": [[1], [2]]},
    ],
)
def test_anything_else_is_left_alone(fields: dict[str, Any]) -> None:
    assert not resumable(CHAT, {**BODY, **fields})


def test_other_paths_are_left_alone() -> None:
    assert not resumable("/v1/embeddings", BODY)
    assert resumable("/v1/completions", {**BODY, "prompt": "x"})


def test_engines_that_take_token_ids_have_a_journal() -> None:
    assert [journal_of(kind, CHAT) is not None for kind in ("kvring", "vllm")] == [True, True]
    assert [journal_of(kind, CHAT) for kind in ("sglang", "trtllm", "llamacpp", "plain", "")] == [None] * 5
