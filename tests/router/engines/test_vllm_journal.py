"""The journal of vLLM's streams: another goes on, wherever one was cut, and the client sees one answer."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from router.engines.vllm_journal import VllmJournal
from router.wire.sse import DONE, encode_event, event_data
from tests.router.engines.scripted_vllm import SAID, ScriptedVllm

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello"}]


def asking(fields: dict[str, Any]) -> bytes:
    return json.dumps({"model": "m", "stream": True, **fields}).encode()


USAGE = b'"stream_options":{"include_usage":true},'


def first_events(engine: ScriptedVllm, path: str, raw: bytes, inserted: bytes = USAGE) -> list[bytes]:
    return engine.answer(path, b"{" + inserted + VllmJournal.asks + raw[1:])


def read(events: list[bytes]) -> dict[str, Any]:
    """What a client reads from a whole stream."""
    assert events[-1] == DONE
    assert events.count(DONE) == 1
    chunks = [orjson.loads(event_data(event) or b"") for event in events[:-1]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert not any(one.get("token_ids") or one.get("prompt_token_ids") for one in chunks + choices)
    return {
        "heads": {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks},
        "text": "".join(
            one["delta"].get("content", "") if "delta" in one else one["text"] for one in choices
        ),
        "roles": [one["delta"]["role"] for one in choices if "role" in one.get("delta", {})],
        "reasons": [one["finish_reason"] for one in choices if one["finish_reason"]],
        "usage": {name: n for name, n in chunks[-1]["usage"].items() if name != "prompt_tokens_details"},
    }


def cut(engine: ScriptedVllm, path: str, raw: bytes, events: list[bytes], at: int) -> list[bytes]:
    """Return what a client sees whose replica died after `at` events."""
    journal = VllmJournal(path)
    seen = [journal.take(event) for event in events[:at]]
    if (closing := journal.closing()) is not None:
        return seen + [journal.take(event) for event in closing]
    again = journal.resume("vllm", raw, USAGE, engine.context_tokens)
    assert again is not None
    return seen + [journal.take(event) for event in engine.answer(again[0], b"".join(again[1]))]


REQUESTS = [
    (CHAT, {"messages": MESSAGES, "max_tokens": 50}),
    (CHAT, {"messages": MESSAGES, "max_completion_tokens": 31, "temperature": 0, "seed": 3, "stop": []}),
    (CHAT, {"messages": MESSAGES}),
    (COMPLETION, {"prompt": "once", "max_tokens": 60, "stop": None, "frequency_penalty": 0.0}),
    (COMPLETION, {"prompt": [1, 2, 3]}),
]


@pytest.mark.parametrize(("end_at", "burst", "primed"), [(60, 1, False), (10_000, 1, False), (75, 3, True)])
@pytest.mark.parametrize(("path", "fields"), REQUESTS)
def test_it_goes_on_wherever_it_was_cut(
    path: str, fields: dict[str, Any], end_at: int, burst: int, primed: bool
) -> None:
    engine = ScriptedVllm(context_tokens=120, end_at=end_at, burst=burst, primed=primed)
    raw = asking(fields)
    events = first_events(engine, path, raw)
    whole = read([VllmJournal(path).take(event) for event in events])
    assert len(whole["text"]) > 5
    for at in range(1, len(events)):
        assert read(cut(engine, path, raw, events, at)) == whole, at


def test_a_second_death_and_a_third() -> None:
    engine = ScriptedVllm(context_tokens=150)
    raw = asking({"messages": MESSAGES})
    events = first_events(engine, CHAT, raw)
    whole = read([VllmJournal(CHAT).take(event) for event in events])
    journal, seen = VllmJournal(CHAT), []
    for at in (9, 1, 0, 13, 1000):
        seen += [journal.take(event) for event in events[:at]]
        if DONE not in seen:
            again = journal.resume("vllm", raw, USAGE, 150)
            assert again is not None
            events = engine.answer(again[0], b"".join(again[1]))
    assert read(seen) == whole


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_who_went_on_dies_behind_the_end_of_the_text(path: str) -> None:
    engine = ScriptedVllm(context_tokens=150)
    raw = asking({"messages": MESSAGES} if path == CHAT else {"prompt": "once", "max_tokens": 20})
    events = first_events(engine, path, raw)
    whole = read([VllmJournal(path).take(event) for event in events])
    journal = VllmJournal(path)
    seen = [journal.take(event) for event in events[:6]]
    again = journal.resume("vllm", raw, USAGE, 150)
    assert again is not None
    # All but its usage and [DONE].
    seen += [journal.take(event) for event in engine.answer(again[0], b"".join(again[1]))[:-2]]
    closing = journal.closing()
    assert closing is not None
    seen += [journal.take(event) for event in closing]
    assert read(seen) == whole


def test_nothing_sent_is_simply_asked_again() -> None:
    raw = asking({"messages": MESSAGES, "stop": ["x"]})
    again = VllmJournal(CHAT).resume("vllm", raw, USAGE, None)
    assert again == (CHAT, [b"{", USAGE, VllmJournal.asks, raw[1:]])
    journal = VllmJournal(CHAT)
    assert journal.take(b": keep-alive\n\n") == b": keep-alive\n\n"
    assert journal.resume("vllm", raw, USAGE, None) == again


def test_usage_in_every_event_is_that_of_the_whole() -> None:
    engine = ScriptedVllm()
    raw = asking(
        {
            "messages": MESSAGES,
            "max_tokens": 20,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
    )
    events = first_events(engine, CHAT, raw, b"")
    prompt = len(repr(MESSAGES))
    seen = [orjson.loads(event_data(event) or b"") for event in cut(engine, CHAT, raw, events, 8)[:-1]]
    counts = [chunk["usage"]["completion_tokens"] for chunk in seen]
    assert counts == sorted(counts)
    assert {chunk["usage"]["prompt_tokens"] for chunk in seen} == {prompt}
    assert seen[-1]["usage"]["total_tokens"] == prompt + 20
    assert seen[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == prompt


def test_the_rest_is_asked_for_with_what_still_holds() -> None:
    engine = ScriptedVllm()
    fields = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_tokens": 40,
        "min_tokens": 10,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "stop_token_ids": [5],
        "ignore_eos": True,
        "cache_salt": "tenant",
        "user": "u",
        "chat_template_kwargs": {"x": 1},
        "presence_penalty": 0,
        "metadata": {"a": "b"},
    }
    raw = asking(fields)
    cut(engine, CHAT, raw, first_events(engine, CHAT, raw), 7)
    asked = engine.asked[-1]
    prompt = asked.pop("prompt")
    text = list(repr(fields["messages"]).encode())
    assert prompt[: len(text)] == text
    sent = len(prompt) - len(text)
    assert 1 <= sent <= 6
    assert asked == {
        "model": "m",
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "stop_token_ids": [5],
        "ignore_eos": True,
        "cache_salt": "tenant",
        "user": "u",
        "max_tokens": 40 - sent,
        "min_tokens": 10 - sent,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


INEXACT: list[dict[str, Any]] = [
    {"stop": ["x"]},
    {"stop": "x"},
    {"frequency_penalty": 0.5},
    {"presence_penalty": -1},
    {"repetition_penalty": 1.1},
    {"bad_words": ["x"]},
    {"seed": 4},
    {"seed": 4, "temperature": 0.5},
    {"vllm_xargs": {"x": 1}},
    {"thinking_token_budget": 10},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
]


@pytest.mark.parametrize("fields", INEXACT)
def test_what_looks_back_on_the_answer_is_left_alone(fields: dict[str, Any]) -> None:
    engine = ScriptedVllm()
    raw = asking({"messages": MESSAGES, "max_tokens": 30, **fields})
    journal = VllmJournal(CHAT)
    for event in first_events(engine, CHAT, raw)[:5]:
        journal.take(event)
    assert journal.resume("vllm", raw, USAGE, 400) is None


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "hm"},
        {"reasoning_content": "hm"},
        {"content": None, "tool_calls": [{"index": 0}]},
    ],
)
def test_what_a_parser_made_cannot_be_gone_on_from(delta: dict[str, Any]) -> None:
    engine = ScriptedVllm()
    raw = asking({"messages": MESSAGES})
    journal = VllmJournal(CHAT)
    for event in first_events(engine, CHAT, raw)[:5]:
        journal.take(event)
    assert journal.resume("vllm", raw, USAGE, 400) is not None
    chunk = {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None, "token_ids": [4]}]}
    journal.take(encode_event(orjson.dumps(chunk)))
    assert journal.resume("vllm", raw, USAGE, 400) is None


def test_words_of_a_parser_within_a_text_mean_nothing() -> None:
    journal = VllmJournal(CHAT)
    engine = ScriptedVllm()
    raw = asking({"messages": MESSAGES})
    journal.take(first_events(engine, CHAT, raw)[0])
    said = ',"reasoning":"x","tool_calls":[{"token_ids":[1,2],"prompt_token_ids":[3]}]'
    choice = {"index": 0, "delta": {"content": said}, "finish_reason": None}
    event = encode_event(orjson.dumps({"id": "c", "choices": [{**choice, "token_ids": [4]}]}))
    assert journal.take(event) == encode_event(orjson.dumps({"id": "c", "choices": [choice]}))
    assert journal.resume("vllm", raw, USAGE, 400) is not None


def test_versions_that_tell_no_ids_are_left_alone() -> None:
    engine = ScriptedVllm()
    raw = asking({"messages": MESSAGES})
    events = engine.answer(CHAT, raw)
    journal = VllmJournal(CHAT)
    assert [journal.take(event) for event in events[:1]] == events[:1]
    # Nothing of the answer was sent, but what its prompt is, is not known.
    assert journal.resume("vllm", raw, USAGE, 400) is None
    assert [journal.take(event) for event in events[1:]] == events[1:]
    assert journal.resume("vllm", raw, USAGE, 400) is None


def test_an_answer_without_a_limit_wants_the_context() -> None:
    engine = ScriptedVllm()
    raw = asking({"messages": MESSAGES})
    journal = VllmJournal(CHAT)
    for event in first_events(engine, CHAT, raw)[:5]:
        journal.take(event)
    assert journal.resume("vllm", raw, USAGE, None) is None
    assert journal.resume("kvring", raw, USAGE, 400) is None
    # A shorter context would end it sooner; one that is full has no room at all.
    assert journal.resume("vllm", raw, USAGE, len(repr(MESSAGES)) + 4) is None
    assert journal.resume("vllm", raw, USAGE, 400) is not None


def test_tokens_whose_text_was_held_back_are_computed_again() -> None:
    engine = ScriptedVllm()
    raw = asking({"prompt": list(SAID[:1]) * 3, "max_tokens": 30})
    events = first_events(engine, COMPLETION, raw)
    texts = [orjson.loads(event_data(event) or b"")["choices"][0]["text"] for event in events[:-2]]
    half = texts.index("")
    journal = VllmJournal(COMPLETION)
    for event in events[: half + 1]:
        journal.take(event)
    assert journal.tokens == half + 1
    journal.resume("vllm", raw, USAGE, None)
    assert journal.tokens == half
