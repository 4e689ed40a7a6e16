"""Prepare: what is sent is what was asked, in parts that copy nothing, wherever it is prepared."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from router.chain.options import ChainOptions
from router.chain.prompt import chat_prompt
from router.config import LimitOptions, ModelOptions
from router.gateway.prepare import Prepared, Preparer
from router.wire.errors import ApiError
from tests.tiny_tokenizer import write_tiny_tokenizer

CHAT = "/v1/chat/completions"
_USER = {"role": "user", "content": "hi"}
_ASKED = b'"stream_options":{"include_usage":true},'


@contextmanager
def preparer(directory: Path | None = None, **chain: Any) -> Iterator[Preparer]:
    models = {"m": ModelOptions(tokenizer_directory=directory)} if directory else {}
    made = Preparer(ChainOptions(**chain), models, LimitOptions())
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
async def by_bytes() -> AsyncIterator[Preparer]:
    with preparer() as made:
        yield made


def _body(messages: list[dict[str, Any]] | None = None, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages or [_USER], **fields}).encode()


def _sent(prepared: Prepared) -> bytes:
    return prepared.raw[: prepared.opening] + prepared.inserted + prepared.raw[prepared.opening :]


async def test_what_needs_no_change_is_sent_as_it_came(by_bytes: Preparer) -> None:
    for raw in (
        _body(),
        b" \r\n\t" + _body() + b"\n",
        _body(stream=False, stream_options={}),
        _body(stream=True, stream_options={"include_usage": True}),
        _body(stream=True, stream_options="odd"),
    ):
        prepared = await by_bytes.prepare(CHAT, raw, None)
        assert prepared.raw is raw
        assert (prepared.inserted, prepared.usage_asked) == (b"", False)
        assert _sent(prepared) == raw
        assert prepared.streamed == (json.loads(raw).get("stream") is True)


async def test_usage_is_asked_for_ahead_of_what_the_client_sent(by_bytes: Preparer) -> None:
    for raw in (_body(stream=True), b"\n \t" + _body(stream=True), b'{ "model" :' + _body(stream=True)[10:]):
        prepared = await by_bytes.prepare(CHAT, raw, None)
        assert prepared.raw is raw
        assert (prepared.inserted, prepared.usage_asked, prepared.streamed) == (_ASKED, True, True)
        assert json.loads(_sent(prepared)) == {**json.loads(raw), "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("options", ["null", "{}", '{"include_usage":false}', '{"other":0.1,"x":[1]}'])
async def test_a_streams_own_options_are_kept_and_written_anew(by_bytes: Preparer, options: str) -> None:
    text = '{"model":"m","messages":[{"role":"user","content":"größe"}],"stream":true,"seed":' + "9" * 30
    raw = (text + f',"stream_options":{options}}}').encode()
    prepared = await by_bytes.prepare(CHAT, raw, None)
    assert (prepared.inserted, prepared.usage_asked) == (b"", True)
    sent = json.loads(_sent(prepared))
    assert sent.pop("stream_options") == {
        **(json.loads(raw)["stream_options"] or {}),
        "include_usage": True,
    }
    expected = json.loads(raw)
    del expected["stream_options"]
    assert sent == expected


async def test_what_is_counted(by_bytes: Preparer) -> None:
    messages = [{"role": "system", "content": "s"}, _USER, {"role": "assistant", "content": "a"}, _USER]
    chat = await by_bytes.prepare(CHAT, _body(messages, n=3), "a session")
    assert (chat.prompts, chat.choices, chat.turn, chat.tier) == (1, 3, 2, "bytes")
    assert chat.ask.session is not None
    for prompt, prompts in (("a", 1), (["a", "b"], 2), ([1, 2], 1), ([[1], [2], [3]], 3)):
        raw = json.dumps({"model": "m", "prompt": prompt, "n": 2}).encode()
        text = await by_bytes.prepare("/v1/completions", raw, None)
        assert (text.prompts, text.choices, text.turn) == (prompts, 2 * prompts, 0)
        assert text.ask.session is None


async def test_streams_of_one_text_may_be_continued(by_bytes: Preparer) -> None:
    for fields, may in (({"stream": True}, True), ({}, False), ({"stream": True, "n": 2}, False)):
        assert (await by_bytes.prepare(CHAT, _body(**fields), None)).resumable is may


async def test_asks_without_a_key_are_spread(by_bytes: Preparer) -> None:
    spreads = {(await by_bytes.prepare(CHAT, _body(), None)).ask.spread for _ in range(100)}
    assert len(spreads) == 100


@pytest.mark.parametrize("algorithm", ["xxh3", "sha256"])
async def test_short_work_is_done_at_once_and_long_work_in_a_thread(tmp_path: Path, algorithm: str) -> None:
    """A thread costs more than short work, and long work would hold up all other streams."""
    directory = write_tiny_tokenizer(tmp_path / "model")
    long = "The river runs to the sea. " * 4000
    with preparer(algorithm=algorithm, block_tokens=64) as made:
        await made.prepare(CHAT, _body(), None)
        await made.prepare(CHAT, _body([{"role": "user", "content": long[:60_000]}]), None)
        assert not made._threads._threads
        await made.prepare(CHAT, _body([{"role": "user", "content": long * 4}]), None)
        assert made._threads._threads
    with preparer(algorithm=algorithm) as made:
        await made.prepare(CHAT, _body([_USER] * 100), None)
        assert not made._threads._threads
        await made.prepare(CHAT, _body([_USER] * 500), None)
        assert made._threads._threads
    with preparer(directory, algorithm=algorithm) as made:
        history = [{"role": "user", "content": long[:60_000]}, {"role": "assistant", "content": "Yes."}]
        # What is known of a conversation costs nothing: its next turn is as short as its new text.
        namer = made.namers.by_tokens("m")
        assert namer is not None
        namer.chain(chat_prompt({"model": "m", "messages": history}))
        await made.prepare(CHAT, _body([*history, _USER]), None)
        assert not made._threads._threads
        await made.prepare(CHAT, _body([*history, {"role": "user", "content": long[:20_000]}]), None)
        assert made._threads._threads


@pytest.mark.parametrize("size", [100, 300_000])
async def test_a_body_that_is_none_is_refused_wherever_it_is_read(by_bytes: Preparer, size: int) -> None:
    long = "x" * size
    for raw, message in (
        (json.dumps([long]).encode(), "must be a JSON object"),
        (_body(model=3, user=long), "'model'"),
        (json.dumps({"model": "m", "user": long}).encode(), "'messages'"),
        (_body()[:-1] + b',"user":"' + long.encode() + b'\\ud83d"}', "not valid JSON"),
        (_body()[:-1] + b',"x":' + b"[" * 101 + b"]" * 101 + b',"user":"' + long.encode() + b'"}', "nested"),
    ):
        with pytest.raises(ApiError, match=message) as caught:
            await by_bytes.prepare(CHAT, raw, None)
        assert caught.value.status == 400
