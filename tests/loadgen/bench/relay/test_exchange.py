"""What is asked and answered: sizes are right, marks are found, and an answer fits its own request alone."""

from __future__ import annotations

import orjson
import pytest

from loadgen.bench.relay.exchange import (
    EVENTS,
    PREFIX_GROUPS,
    Kind,
    json_answer,
    number,
    read_held,
    read_mark,
    requests,
    stream_events,
)


@pytest.mark.parametrize("body_bytes", [200, 16_384, 131_072])
def test_a_request_has_its_size_and_its_mark(body_bytes: int) -> None:
    heads, ending = requests("json", body_bytes, "secret", seed=1)
    assert len(set(heads)) == PREFIX_GROUPS
    for head in heads:
        top, _, body = (head + number(7) + ending).partition(b"\r\n\r\n")
        assert b"content-length: %d" % body_bytes in top
        assert b"authorization: Bearer secret" in top
        assert len(body) == body_bytes
        parsed = orjson.loads(body)
        assert [message["role"] for message in parsed["messages"]] == ["system", "user"]
        assert read_mark(body) == ("json", number(7))


@pytest.mark.parametrize(("kind", "stream"), [("json", None), ("held", None), ("sse", True)])
def test_only_streams_ask_for_one(kind: Kind, stream: bool | None) -> None:
    heads, ending = requests(kind, 200, "k", seed=0)
    body = (heads[0] + number(1) + ending).partition(b"\r\n\r\n")[2]
    assert orjson.loads(body).get("stream") is stream
    assert read_mark(body) == (kind, number(1))


def test_a_body_too_small_for_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        requests("json", 50, "k", seed=0)


def test_a_rewritten_body_keeps_its_mark() -> None:
    body = b'{"stream":true,"messages":[{"content":"[[sse 000000000123]]","role":"user"}],"model":"mock"}'
    assert read_mark(body) == ("sse", b"000000000123")
    assert read_mark(b'{"messages":[]}') is None
    assert read_mark(b"[[sse 12]]") is None


def test_an_answer_fits_its_request_alone() -> None:
    answer = json_answer(number(5), b"000020123")
    assert orjson.loads(answer)["id"] == "chatcmpl-000000000005"
    assert read_held(answer, number(5)) == 20_123
    assert read_held(answer, number(6)) is None
    assert read_held(answer[:-1], number(5)) is None
    assert read_held(answer.replace(b"ring", b"rink"), number(5)) is None


def test_events_are_counted_by_their_ends() -> None:
    events = stream_events(number(1), usage=False)
    assert len(events) == b"".join(events).count(b"\n\n") == EVENTS
    assert not any(b"usage" in event for event in events)
    asked = stream_events(number(1), usage=True)
    assert len(asked) == EVENTS + 1
    assert orjson.loads(asked[-2].removeprefix(b"data: "))["usage"]["total_tokens"] == 98
