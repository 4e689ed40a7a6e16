"""The journal of our own streams: ids are cut out, remembered, and told again to who goes on."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.engines.journal import Journal
from router.wire.sse import DONE, encode_event

CHAT = "/v1/chat/completions"
RAW = b' {"model":"m","messages":[],"stream":true}'


def chunk(text: str, ids: list[int] | None, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    if ids is not None:
        choice["token_ids"] = ids
    return encode_event(orjson.dumps({"id": "c-1", "created": 5, "choices": [choice], "usage": None}))


OPENING = encode_event(
    b'{"id":"c-1","created":5,"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"logprobs":null,"finish_reason":null}]}'
)
USED = encode_event(b'{"id":"c-1","created":5,"choices":[],"usage":{"prompt_tokens":1}}')


def resumed(journal: Journal) -> dict[str, object]:
    again = journal.resume("kvring", RAW, b'"x":1,', None)
    assert again is not None
    path, parts = again
    assert path == f"/resume{CHAT}"
    body = orjson.loads(b"".join(parts))
    assert body["x"] == 1
    assert body["return_token_ids"] == "answer"
    told: dict[str, object] = body["kvring_resume"]
    return told


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(max_size=20) | st.sampled_from([',"token_ids":[1]', '"finish_reason":"stop"', "]", '"']),
            st.lists(st.integers(0, 2**32 - 1), max_size=4),
        ),
        max_size=8,
    )
)
def test_the_client_sees_what_it_would_have_seen(said: list[tuple[str, list[int]]]) -> None:
    journal = Journal(CHAT)
    assert journal.take(OPENING) == OPENING
    for text, ids in said:
        assert journal.take(chunk(text, ids)) == chunk(text, None)
    tokens = [id for _, ids in said for id in ids]
    assert journal.tokens == len(tokens)
    assert resumed(journal) == {"id": "c-1", "created": 5, "ended": False, "token_ids": tokens}


def test_a_request_of_which_nothing_was_seen_is_sent_again_as_it_was() -> None:
    journal = Journal(CHAT)
    journal.take(b": comment\n\n")
    again = journal.resume("kvring", RAW, b'"x":1,', None)
    assert again == (CHAT, [b" {", b'"x":1,', Journal.asks, RAW[2:]])


def test_what_is_missing_at_the_end() -> None:
    journal = Journal(CHAT)
    journal.take(OPENING)
    journal.take(chunk("a", [1]))
    assert journal.closing() is None
    journal.take(chunk("", [2], "stop"))
    # The usage is the replica's to say.
    assert journal.closing() is None
    assert resumed(journal)["ended"] is True
    assert journal.take(USED) == USED
    assert journal.closing() == [DONE]


@pytest.mark.parametrize(
    "event",
    [
        chunk("text", None),
        chunk("", None, "stop"),
        encode_event(b'{"choices":[{"index":0,"text":"x"}]}'),
        encode_event(b'{"choices":[{"index":0,"delta":{"tool_calls":[{}]}}]}'),
        encode_event(b'{"choices":[1]}'),
        encode_event(b'{"choices":[{}'),
        chunk("x", []).replace(b'"token_ids":[]', b'"token_ids":[1}'),
        chunk("x", []).replace(b'"token_ids":[]', b'"token_ids":[1],"x":[{"y":2}]').replace(b"[1]", b'["a"]'),
    ],
)
def test_text_of_unknown_tokens_cannot_be_gone_on_from(event: bytes) -> None:
    journal = Journal(CHAT)
    journal.take(OPENING)
    journal.take(event)
    journal.take(chunk("a", [1]))
    assert journal.resume("kvring", RAW, b"", None) is None


def test_only_the_same_engine_goes_on() -> None:
    assert Journal(CHAT).resume("vllm", RAW, b"", None) is None
    assert Journal(CHAT).resume("", RAW, b"", None) is None


def test_an_answer_without_bounds_is_not_remembered_for_ever() -> None:
    journal = Journal(CHAT)
    journal.take(OPENING)
    many = chunk("x", [4_000_000_000] * 100_000)
    for _ in range(40):
        assert journal.take(many) == chunk("x", None)
    assert journal.resume("kvring", RAW, b"", None) is None
    assert journal.tokens < 2_000_000
