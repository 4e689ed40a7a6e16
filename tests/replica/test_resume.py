"""Resumed streams: wherever one is cut, what was sent and what follows are what would have been sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from router.engines.journal import Journal
from router.wire.sse import DONE
from tests.replica.conftest import Client, Launch
from tests.replica.resumed import CHAT, COMPLETION, Told, asking, cut_at, events_of, told, with_ids
from tests.replica.tiny_chat import write_tiny_chat

FILLER = "a€b😀c漢字 own fox and ox "
MESSAGES = [{"role": "user", "content": "Tell me about the sea, the river and the mountain."}]
GREEDY = {"max_tokens": 30, "temperature": 0}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_chat(tmp_path_factory.mktemp("tiny"))


def tiny(directory: Path, **fields: Any) -> dict[str, Any]:
    """Options of a replica that serves the tiny model, in fp32."""
    torch = {"dtype": "fp32", "block_count": fields.pop("block_count", 64)}
    return {"runner": "torch", "model_directory": str(directory), "torch": torch, **fields}


async def undisturbed(client: Client, path: str, raw: bytes) -> tuple[list[bytes], Told]:
    """Return the events of a stream with token ids, and what it tells without them."""
    events = await events_of(client, path, with_ids(raw))
    journal = Journal(path)
    return events, told([journal.take(event) for event in events])


async def check_cuts(client: Client, other: Client, path: str, fields: dict[str, Any], step: int = 1) -> Told:
    """Check each cut of a stream of `client` that `other` goes on with."""
    raw = asking(fields)
    events, whole = await undisturbed(client, path, raw)
    for cut in range(1, len(events), step):
        assert told(await cut_at(other, path, raw, events, cut)) == whole, cut
    return whole


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": MESSAGES, "max_tokens": 20}),
        (CHAT, {"messages": MESSAGES, "max_tokens": 40, "stop": ["own fox", "xyz"]}),
        (CHAT, {"messages": MESSAGES, "max_tokens": 9, "stop": ["漢字 o!", "€", " own "]}),
        (COMPLETION, {"prompt": "once", "max_tokens": 15, "stop": "fox an"}),
        (COMPLETION, {"prompt": list(range(40))}),
        (COMPLETION, {"prompt": ["one"], "max_tokens": 1}),
    ],
)
async def test_text_that_lags_behind_tokens_is_neither_lost_nor_sent_twice(
    launch: Launch, path: str, fields: dict[str, Any]
) -> None:
    first = await launch(echo={"filler": FILLER})
    second = await launch(echo={"filler": FILLER}, name="replica-2")
    await check_cuts(first, second, path, fields)


async def test_any_stop_string_at_any_cut(launch: Launch) -> None:
    client = await launch(echo={"filler": FILLER, "decode_seconds": 0, "prefill": {"base_seconds": 0}})
    random = Random(5)
    for _ in range(12):
        starts = [random.randrange(len(FILLER) * 2) for _ in range(random.randint(1, 3))]
        stops = [(FILLER * 3)[start : start + random.randint(1, 9)] for start in starts]
        # One that begins like a true one, and goes on otherwise.
        fields = {"prompt": "x", "max_tokens": random.randint(4, 30), "stop": [*stops, stops[0] + "!"]}
        await check_cuts(client, client, COMPLETION, fields, step=2)


@pytest.mark.parametrize(
    "fields",
    [
        GREEDY,
        {**GREEDY, "ignore_eos": True, "max_tokens": 50},
        {"max_tokens": 30, "temperature": 1.5, "top_p": 0.95, "seed": 11},
        {"max_tokens": 40, "temperature": 2.0, "seed": 5, "stop": ["the", "ed", "�"]},
    ],
)
async def test_a_model_goes_on_token_by_token(
    launch: Launch, directory: Path, fields: dict[str, Any]
) -> None:
    first = await launch(**tiny(directory))
    second = await launch(**tiny(directory), name="replica-2")
    whole = await check_cuts(first, second, CHAT, {"messages": MESSAGES, **fields}, step=3)
    assert whole.usages[0][1] > 3


async def test_it_goes_on_without_a_cache_too(launch: Launch, directory: Path) -> None:
    first = await launch(**tiny(directory))
    second = await launch(**tiny(directory, enable_prefix_caching=False), name="replica-2")
    await check_cuts(first, second, CHAT, {"messages": MESSAGES, **GREEDY}, step=7)


async def test_a_cache_that_holds_the_answer_spares_its_prefill(launch: Launch, directory: Path) -> None:
    client = await launch(**tiny(directory))
    raw = asking({"messages": MESSAGES, "max_tokens": 60, "temperature": 0, "ignore_eos": True})
    events, whole = await undisturbed(client, CHAT, raw)
    before = await client.metric("vllm:prefix_cache_hits_total")
    assert told(await cut_at(client, CHAT, raw, events, len(events) - 8)) == whole
    prompt, answer, _ = whole.usages[0]
    hits = await client.metric("vllm:prefix_cache_hits_total") - before
    assert hits > prompt + answer / 2
    usage = (await client.chat(MESSAGES, max_tokens=1)).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == (prompt - 1) // 16 * 16


async def test_cached_tokens_are_those_of_the_prompt(launch: Launch) -> None:
    client = await launch()
    raw = asking({"prompt": list(range(24)), "max_tokens": 60})
    events, _ = await undisturbed(client, COMPLETION, raw)
    seen = await cut_at(client, COMPLETION, raw, events, len(events) - 6)
    details = [event for event in seen if b"cached_tokens" in event]
    # The answer was held as well, in blocks that the prompt's end is in.
    assert len(details) == 1
    assert b'"cached_tokens":24,"evicted_tokens":0' in details[0]


async def test_preempted_answers_go_on_all_the_same(launch: Launch, directory: Path) -> None:
    first = await launch(**tiny(directory))
    small = await launch(**tiny(directory, block_count=13), name="replica-2")
    asked = [
        asking({"prompt": [3 + n, 9, 40 + n], "max_tokens": 90, "temperature": 0, "ignore_eos": True})
        for n in range(4)
    ]
    runs = [await undisturbed(first, COMPLETION, raw) for raw in asked]
    seen = await asyncio.gather(
        *(
            cut_at(small, COMPLETION, raw, events, 10 + 7 * n)
            for n, (raw, (events, _)) in enumerate(zip(asked, runs, strict=True))
        )
    )
    assert [told(events) for events in seen] == [whole for _, whole in runs]
    assert await small.metric("vllm:num_preemptions_total") > 0
    await small.idle()


async def test_a_stream_cut_twice(launch: Launch) -> None:
    client = await launch(echo={"filler": FILLER})
    raw = asking({"messages": MESSAGES, "max_tokens": 25})
    events, whole = await undisturbed(client, CHAT, raw)
    journal = Journal(CHAT)
    seen = []
    for cut in (4, 3, 5, 1000):
        seen += [journal.take(event) for event in events[:cut]]
        if DONE not in seen:
            again = journal.resume("kvring", raw, b"", None)
            assert again is not None
            events = await events_of(client, again[0], b"".join(again[1]))
    assert told(seen) == whole


async def test_what_was_ended_needs_no_computing(launch: Launch) -> None:
    client = await launch(echo={"filler": FILLER})
    raw = asking({"messages": MESSAGES, "max_tokens": 5})
    events, whole = await undisturbed(client, CHAT, raw)
    generated = await client.metric("vllm:generation_tokens_total")
    # Without usage and [DONE]; then without the finish reason, too.
    for missing in (2, 3):
        assert told(await cut_at(client, CHAT, raw, events, len(events) - missing)) == whole
    assert await client.metric("vllm:generation_tokens_total") == generated


async def test_a_client_that_leaves_a_resumed_stream_leaves_nothing_behind(launch: Launch) -> None:
    client = await launch(echo={"decode_seconds": 0.01})
    head = {"id": "chatcmpl-1", "created": 1, "token_ids": [4, 5, 6]}
    body = {"model": "m", "messages": MESSAGES, "stream": True, "max_tokens": 500, "kvring_resume": head}
    async with client.http.stream("POST", f"/resume{CHAT}", json=body) as response:
        assert response.status_code == 200
        await anext(response.aiter_raw())
    state = await client.idle()
    assert state["free_blocks"] == state["block_count"]


GOOD: dict[str, Any] = {"id": "chatcmpl-1", "created": 1, "token_ids": [1, 2]}


@pytest.mark.parametrize(
    "resume",
    [
        None,
        [],
        {},
        {**GOOD, "id": ""},
        {**GOOD, "id": 5},
        {**GOOD, "id": "x" * 257},
        {**GOOD, "created": -1},
        {**GOOD, "created": True},
        {**GOOD, "created": 1.5},
        {**GOOD, "ended": 1},
        {**GOOD, "ended": True},
        {**GOOD, "token_ids": None},
        {**GOOD, "token_ids": ["1"]},
        {**GOOD, "token_ids": [True]},
        {**GOOD, "token_ids": [-1]},
        {**GOOD, "token_ids": [2**32]},
        # More than max_tokens, and behind a token that ends an answer.
        {**GOOD, "token_ids": [1] * 6},
        {**GOOD, "token_ids": [1, 77, 1]},
    ],
)
async def test_what_cannot_be_resumed_is_refused(launch: Launch, resume: object) -> None:
    client = await launch()
    body = {"model": "m", "messages": MESSAGES, "stream": True, "max_tokens": 5, "stop_token_ids": [77]}
    response = await client.http.post(f"/resume{CHAT}", json={**body, "kvring_resume": resume})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "kvring_resume"
    await client.idle()


async def test_only_streams_of_one_choice_are_resumed(launch: Launch) -> None:
    client = await launch()
    for fields in ({"prompt": "x"}, {"prompt": "x", "stream": False}, {"prompt": ["x", "y"], "stream": True}):
        body = {"model": "m", **fields, "kvring_resume": GOOD}
        assert (await client.http.post(f"/resume{COMPLETION}", json=body)).status_code == 400


async def test_text_behind_a_stop_string_is_refused(launch: Launch) -> None:
    client = await launch(echo={"filler": FILLER})
    raw = asking({"prompt": "x", "max_tokens": 30})
    events, _ = await undisturbed(client, COMPLETION, raw)
    with pytest.raises(AssertionError, match="goes on after its end"):
        await cut_at(client, COMPLETION, raw[:-1] + b',"stop":"a"}', events, 12)


async def test_a_token_that_the_model_does_not_have_is_refused(launch: Launch, directory: Path) -> None:
    client = await launch(**tiny(directory))
    resume = {**GOOD, "token_ids": [100_000]}
    body = {"model": "m", "prompt": "x", "stream": True, "kvring_resume": resume}
    response = await client.http.post(f"/resume{COMPLETION}", json=body)
    assert response.status_code == 400


async def test_a_member_of_that_name_means_nothing_elsewhere(launch: Launch) -> None:
    client = await launch()
    answer = await client.chat("x", kvring_resume=GOOD)
    assert answer.json()["usage"]["completion_tokens"] == 4
