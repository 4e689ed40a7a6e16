"""Token ids, when asked for: where vLLM has them, all of them, and never ahead of their text."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from replica.detokenizer import StopScanner, WordDetokenizer
from router.wire.sse import event_data
from tests.replica.conftest import Launch
from tests.replica.resumed import CHAT, COMPLETION, asking, events_of

FILLER = "a€b😀c漢字 own fox "


async def test_a_chat_tells_its_prompts_beside_the_choices(launch: Launch) -> None:
    client = await launch()
    body = (await client.chat("hello", max_tokens=3, return_token_ids=True)).json()
    (choice,) = body["choices"]
    assert len(body["prompt_token_ids"]) == body["usage"]["prompt_tokens"]
    assert len(choice["token_ids"]) == 3
    assert "prompt_token_ids" not in choice
    again = (await client.complete(body["prompt_token_ids"], return_token_ids=True)).json()
    assert again["choices"][0]["prompt_token_ids"] == body["prompt_token_ids"]


async def test_a_completion_tells_them_in_each_choice(launch: Launch) -> None:
    client = await launch()
    body = (await client.complete([[1, 2], [3]], return_token_ids=True)).json()
    assert [choice["prompt_token_ids"] for choice in body["choices"]] == [[1, 2], [3]]
    assert [len(choice["token_ids"]) for choice in body["choices"]] == [4, 4]
    assert "prompt_token_ids" not in body


@pytest.mark.parametrize("wanted", [None, False])
async def test_nobody_is_told_unasked(launch: Launch, wanted: object) -> None:
    client = await launch()
    assert "token_ids" not in (await client.chat("x", return_token_ids=wanted)).text
    raw = asking({"prompt": "x", "return_token_ids": wanted})
    assert not any(b"token_ids" in event for event in await events_of(client, COMPLETION, raw))


@pytest.mark.parametrize("wanted", [0, 1, "all", "none", [], {}])
async def test_other_values_are_refused(launch: Launch, wanted: object) -> None:
    client = await launch()
    response = await client.chat("x", return_token_ids=wanted)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "return_token_ids"


async def test_a_stream_tells_the_prompt_once_and_first(launch: Launch) -> None:
    client = await launch()
    for path, prompt in (
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}),
        (COMPLETION, {"prompt": "x"}),
    ):
        for wanted, count in ((True, 1), ("answer", 0)):
            raw = asking({**prompt, "max_tokens": 8, "return_token_ids": wanted})
            events = await events_of(client, path, raw)
            assert sum(b"prompt_token_ids" in event for event in events) == count
            chunks = [orjson.loads(event_data(event) or b"") for event in events[:-1]]
            told = chunks[0] if path == CHAT else chunks[0]["choices"][0]
            assert len(told.get("prompt_token_ids", ())) == count * chunks[-1]["usage"]["prompt_tokens"]
            choices = [choice for chunk in chunks for choice in chunk["choices"]]
            assert sum(len(choice.get("token_ids", ())) for choice in choices) == 8


@pytest.mark.parametrize("stops", [[], ["own!", "漢字 o?"], ["fox "]])
async def test_the_ids_of_events_make_the_text_of_events(launch: Launch, stops: list[str]) -> None:
    """What was told up to any event decodes to what was sent up to it: nothing is told ahead of its text."""
    client = await launch(echo={"filler": FILLER})
    raw = asking({"prompt": "x", "max_tokens": 20, "stop": stops, "return_token_ids": "answer"})
    chunks: list[dict[str, Any]] = [
        orjson.loads(event_data(event) or b"") for event in (await events_of(client, COMPLETION, raw))[:-2]
    ]
    detokenizer, scanner = WordDetokenizer(), StopScanner(stops)
    sent = made = ""
    for chunk in chunks[:-2]:
        (choice,) = chunk["choices"]
        assert choice["token_ids"]
        sent += choice["text"]
        for token in choice["token_ids"]:
            made += scanner.feed(detokenizer.feed(token))
        assert made == sent
