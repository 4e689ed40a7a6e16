"""Canonical prompts: which bodies are read, which are refused, and what the byte chain is made of."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from router.chain.namer import ChainNamer
from router.chain.prompt import (
    PromptError,
    canonical_bytes,
    canonical_pieces,
    chat_prompt,
    completion_prompts,
)

_USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0]"),
        ({"messages": [_USER, {"role": 1}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
        ({"messages": [{**_USER, "tool_calls": "x"}]}, "messages[0].tool_calls"),
        ({"messages": [{**_USER, "tool_calls": [{"function": {}}]}]}, "messages[0].tool_calls"),
        (
            {"messages": [{**_USER, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "messages[0].tool_calls",
        ),
        ({"messages": [_USER], "tools": {}}, "tools"),
        ({"messages": [_USER], "tools": ["x"]}, "tools"),
        ({"messages": [_USER], "model": 3}, "model"),
        ({"messages": [_USER], "model": ""}, "model"),
        ({"messages": [_USER], "cache_salt": ""}, "cache_salt"),
        ({"messages": [_USER], "cache_salt": "x" * 129}, "cache_salt"),
        ({"messages": [_USER], "cache_salt": 3}, "cache_salt"),
        ({"messages": [_USER], "add_generation_prompt": "yes"}, "add_generation_prompt"),
        ({"messages": [_USER], "chat_template_kwargs": 3}, "chat_template_kwargs"),
    ],
)
def test_a_body_that_is_no_chat_is_refused_by_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(PromptError) as caught:
        chat_prompt({"model": "m", **body})
    assert caught.value.field == field


@pytest.mark.parametrize(
    "prompt", [None, "", [], [""], [[]], 3, {}, [-1], [2**32], ["a", [1], 3], [[1, "a"]]]
)
def test_a_body_that_is_no_completion_is_refused(prompt: object) -> None:
    with pytest.raises(PromptError):
        completion_prompts({"model": "m", "prompt": prompt})


def test_the_four_forms_of_a_completion_are_read() -> None:
    def read(prompt: object) -> list[tuple[object, object]]:
        read_prompts = completion_prompts({"model": "m", "prompt": prompt})
        return [(p.text, None if p.tokens is None else list(p.tokens)) for p in read_prompts]

    assert read("s") == [("s", None)]
    assert read(["a", "b"]) == [("a", None), ("b", None)]
    assert read([1, 2, 3]) == [(None, [1, 2, 3])]
    assert read([[1, 2], [3]]) == [(None, [1, 2]), (None, [3])]


def test_parts_of_text_are_joined_and_pictures_cannot_be_rendered() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompt = chat_prompt({"model": "m", "messages": [{"role": "user", "content": parts}]})
    assert prompt.messages is not None
    assert prompt.messages[0]["content"] == "a\nb"
    assert prompt.renderable
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert not chat_prompt(
        {"model": "m", "messages": [{"role": "user", "content": [*parts, picture]}]}
    ).renderable


def test_tool_arguments_become_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    prompt = chat_prompt({"model": "m", "messages": [{"role": "assistant", "tool_calls": [call]}]})
    assert prompt.messages is not None
    assert prompt.messages[0]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert prompt.messages[0]["content"] == ""


def _pieces(**fields: Any) -> list[bytes]:
    return canonical_pieces(chat_prompt({"model": "m", "messages": [_USER], **fields}))[0]


def test_bytes_tell_pictures_apart_and_ignore_the_order_of_keys() -> None:
    def picture(url: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}

    assert _pieces(messages=[picture("data:red")]) != _pieces(messages=[picture("data:blue")])
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": 1, "b": 2}}}
    turned = {"function": {"parameters": {"b": 2, "a": 1}, "name": "f"}, "type": "function"}
    assert _pieces(tools=[tool]) == _pieces(tools=[turned])
    assert _pieces(tools=[tool]) != _pieces()


def test_bytes_of_a_message_cannot_be_imitated_by_content() -> None:
    two = _pieces(messages=[_USER, {"role": "assistant", "content": "x"}])
    forged = _pieces(messages=[{"role": "user", "content": "hi\x00assistant\x00x"}])
    assert b"".join(two) != b"".join(forged)


# Committed so that a change of the canonical form is noticed: routers of different releases must agree.
_EVERYTHING: dict[str, Any] = {
    "model": "größe",
    "cache_salt": "tenant",
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": [2.5, None]}}}],
    "messages": [
        {"role": "system", "content": "You help."},
        {"role": "developer", "content": [{"type": "text", "text": "Grüße"}, {"type": "text", "text": "b"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See:"},
                {"type": "image_url", "image_url": {"url": "data:red"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "salt"},
        {"role": "user", "name": "ann"},
        {"role": "user", "content": "春天 😀 " * 40},
    ],
}


def test_the_canonical_form_stays_as_it_is() -> None:
    prompt = chat_prompt(_EVERYTHING)
    pieces, preamble = canonical_pieces(prompt)
    assert (len(pieces), preamble) == (8, 129)
    whole = b"".join(pieces)
    assert sha256(whole).hexdigest() == "d5f0601398359c6ccd2e55b17444adb88c06f5fbf96438647976dc990d850db3"
    for algorithm, last in (
        ("sha256", "492325efef8a76df20cbbb5595d4e747d5949d38aacc55a7bc4fc93ab6a56826"),
        ("xxh3", "47ddd83db231ed33"),
    ):
        chain = ChainNamer(algorithm, "seed", 16, None).chain(prompt)
        assert chain.names[-1].hex() == last
        assert (len(chain.names), chain.prompt_tokens, chain.preamble_tokens) == (13, 210, 32)


@pytest.mark.parametrize("count", range(1, len(_EVERYTHING["messages"]) + 1))
def test_one_run_of_bytes_and_pieces_are_the_same(count: int) -> None:
    for fields in ({}, {"tools": None}):
        body = {**_EVERYTHING, **fields, "messages": _EVERYTHING["messages"][:count]}
        pieces, preamble = canonical_pieces(chat_prompt(body))
        assert canonical_bytes(chat_prompt(body)) == (b"".join(pieces), preamble)
    for text in ("größe", [1, 2, 3]):
        (prompt,) = completion_prompts({"model": "m", "prompt": text})
        pieces, preamble = canonical_pieces(prompt)
        assert canonical_bytes(prompt) == (b"".join(pieces), preamble)
