"""OpenAI's shapes in and out, over a socket."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.replica.conftest import Launch

CHAT = "/v1/chat/completions"


def error_of(response: Any, status: int) -> dict[str, Any]:
    """Check that the response is OpenAI's error with this status; return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


async def test_a_chat_answer_has_openais_shape(launch: Launch) -> None:
    client = await launch()
    response = await client.chat("hello", max_tokens=3)
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "m"
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["message"] == {"role": "assistant", "content": "The quick br", "refusal": None}
    assert choice["finish_reason"] == "length"
    usage = body["usage"]
    assert usage["completion_tokens"] == 3
    assert usage["total_tokens"] == usage["prompt_tokens"] + 3
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0, "evicted_tokens": 0}
    assert response.headers["x-request-id"]


async def test_completions_take_text_and_token_ids_and_lists_of_both(launch: Launch) -> None:
    client = await launch()
    for prompt, count in (
        ("some text", 1),
        ([1, 2, 3], 1),
        (["one", "two", "three"], 3),
        ([[1, 2], [3]], 2),
    ):
        body = (await client.complete(prompt)).json()
        assert body["object"] == "text_completion"
        assert [choice["index"] for choice in body["choices"]] == list(range(count))
        assert all(choice["text"] == "The quick brown " for choice in body["choices"])
        assert body["usage"]["completion_tokens"] == 4 * count
    assert body["usage"]["prompt_tokens"] == 3


async def test_completions_answer_16_tokens_unless_told(launch: Launch) -> None:
    client = await launch()
    assert (await client.complete("x", max_tokens=None)).json()["usage"]["completion_tokens"] == 16
    assert (await client.chat("x", max_completion_tokens=2)).json()["usage"]["completion_tokens"] == 2


async def test_a_chat_without_a_limit_gets_the_configured_one_within_the_context(launch: Launch) -> None:
    client = await launch(limits={"default_answer_tokens": 20}, echo={"context_tokens": 64})
    assert (await client.chat("x", max_tokens=None)).json()["usage"]["completion_tokens"] == 20
    body = (await client.chat("x" * 200, max_tokens=None)).json()
    assert body["usage"]["total_tokens"] == 64


async def test_models_say_how_long_a_prompt_may_be(launch: Launch) -> None:
    client = await launch(echo={"context_tokens": 640})
    body = (await client.http.get("/v1/models")).json()
    assert body["object"] == "list"
    (card,) = body["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("m", "model", 640)


async def test_stop_strings_end_the_answer_before_themselves(launch: Launch) -> None:
    client = await launch()
    for stop in ("brown", ["zzz", "brown"]):
        body = (await client.chat("x", max_tokens=50, stop=stop)).json()
        assert body["choices"][0]["message"]["content"] == "The quick "
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == 4
    await client.idle()


async def test_a_stop_string_ends_one_choice_while_others_go_on(launch: Launch) -> None:
    client = await launch(scheduler={"max_running": 4, "max_batch_tokens": 16})
    body = (await client.complete([[1], list(range(1000))], max_tokens=500, stop="quick")).json()
    assert [choice["text"] for choice in body["choices"]] == ["The ", "The "]
    # The second is prefilled in some 60 steps, in which the first would have decoded as many tokens.
    assert await client.metric("vllm:generation_tokens_total") < 30


async def test_a_stop_token_ends_the_answer_and_is_not_shown(launch: Launch) -> None:
    client = await launch()
    word = int.from_bytes(b"k br", "little")
    body = (await client.chat("x", max_tokens=50, stop_token_ids=[word])).json()
    assert body["choices"][0]["message"]["content"] == "The quic"
    assert body["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("logprobs", True),
        ("top_logprobs", 2),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("logit_bias", {"5": 1}),
        ("response_format", {"type": "json_object"}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("functions", [{"name": "f"}]),
        ("echo", True),
        ("top_k", 5),
        ("min_tokens", 2),
        ("temperature", 3),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", True),
        ("seed", 1.5),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", "4"),
        ("max_completion_tokens", 2.5),
        ("stream", "yes"),
        ("stop", ""),
        ("stop", 5),
        ("stop", ["a"] * 100),
        ("stop_token_ids", [-1]),
        ("stream_options", {"include_usage": True}),
        ("cache_salt", ""),
        ("cache_salt", "x" * 200),
        ("messages", []),
        ("messages", "text"),
        ("tools", "none"),
        ("chat_template", "{{ messages }}"),
        ("continue_final_message", True),
        ("add_generation_prompt", "no"),
    ],
)
async def test_what_is_not_built_or_malformed_is_refused_by_name(
    launch: Launch, field: str, value: object
) -> None:
    client = await launch()
    error = error_of(
        await client.chat("x", **{field: value})
        if field != "messages"
        else await client.http.post(CHAT, json={"model": "m", "messages": value}),
        400,
    )
    assert error["param"] == field
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("field", "value"),
    [("best_of", 3), ("suffix", "end"), ("logprobs", 0), ("logprobs", 1), ("echo", True), ("n", 4)],
)
async def test_completions_refuse_what_is_not_built(launch: Launch, field: str, value: object) -> None:
    client = await launch()
    assert error_of(await client.complete("x", **{field: value}), 400)["param"] == field


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], [1, "a"], [-1], [2**32], None, 5, [None]])
async def test_completions_refuse_prompts_that_are_none(launch: Launch, prompt: object) -> None:
    client = await launch(limits={"max_prompts": 4})
    assert error_of(await client.complete(prompt), 400)["param"] == "prompt"


async def test_completions_bound_the_number_of_prompts(launch: Launch) -> None:
    client = await launch(limits={"max_prompts": 4})
    assert error_of(await client.complete(["a"] * 5), 400)["param"] == "prompt"
    assert (await client.complete([1, 2, 3, 4, 5])).status_code == 200


async def test_neutral_values_and_unknown_fields_are_accepted(launch: Launch) -> None:
    client = await launch()
    response = await client.chat(
        [{"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "me", "extra": {"a": [1]}}],
        n=1,
        logprobs=False,
        logit_bias={},
        frequency_penalty=0,
        presence_penalty=0.0,
        response_format={"type": "text"},
        tools=[{"type": "function", "function": {"name": "f"}}],
        tool_choice="auto",
        temperature=1e-7,
        seed=2**63 - 1,
        user="somebody",
        prompt_cache_key="k",
        vllm_xargs={"a": 1},
        stop=None,
    )
    assert response.status_code == 200


async def test_pictures_are_refused(launch: Launch) -> None:
    client = await launch()
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    error = error_of(await client.chat([{"role": "user", "content": [part]}]), 400)
    assert error["param"] == "messages"


async def test_another_model_is_not_found_and_none_is_malformed(launch: Launch) -> None:
    client = await launch()
    assert error_of(await client.chat("x", model="other"), 404)["code"] == "model_not_found"
    for model in ("", None, 5, ["m"]):
        assert error_of(await client.chat("x", model=model), 400)["param"] == "model"


async def test_too_long_for_the_context_says_so(launch: Launch) -> None:
    client = await launch(echo={"context_tokens": 64})
    for tokens, fields in ((100, {}), (60, {"max_tokens": 5}), (64, {"max_tokens": None})):
        error = error_of(await client.complete(list(range(tokens)), **fields), 400)
        assert error["code"] == "context_length_exceeded"
        assert "64 tokens" in error["message"]
    assert (await client.complete(list(range(60)), max_tokens=4)).status_code == 200


async def test_the_pool_bounds_the_context(launch: Launch) -> None:
    client = await launch(echo={"block_count": 4, "context_tokens": 10_000})
    assert (await client.state())["context_tokens"] == 64
    assert error_of(await client.complete(list(range(64))), 400)["code"] == "context_length_exceeded"
    assert (await client.complete(list(range(60)), max_tokens=4)).status_code == 200


BAD_BODIES = [
    b"",
    b"not json",
    b"[]",
    b'"text"',
    b"\xff\xfe",
    b'{"model": "m", "messages": [{"role": "user", "content": "x \\ud83d"}]}',
    b'{"model": "m\\ud83d", "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": "m", "cache_salt": "\\ud83d", "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": "m", "temperature": NaN, "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": "m", "x": ' + b"[" * 1_000 + b"]" * 1_000 + b"}",
    b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"model": "m", "tools": ' + b'[{"a":' * 200 + b"1" + b"}]" * 200 + b"}",
]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_malformed_bodies_are_the_clients_fault(launch: Launch, path: str) -> None:
    client = await launch()
    for body in BAD_BODIES:
        error_of(await client.http.post(path, content=body), 400)
    huge = b'{"model": "m", "seed": ' + b"9" * 5_000 + b', "prompt": "x", "messages": []}'
    error_of(await client.http.post(path, content=huge), 400)
    assert (await client.chat("x")).status_code == 200


async def test_a_compressed_body_is_understood_and_a_broken_one_refused(launch: Launch) -> None:
    client = await launch()
    body = gzip.compress(json.dumps({"model": "m", "prompt": "x"}).encode())
    headers = {"content-encoding": "gzip"}
    assert (await client.http.post("/v1/completions", content=body, headers=headers)).status_code == 200
    error_of(await client.http.post("/v1/completions", content=b"no gzip", headers=headers), 400)


async def test_bodies_over_the_limit_get_413(launch: Launch) -> None:
    client = await launch(limits={"max_body_bytes": 4096})
    body = json.dumps({"model": "m", "prompt": "x" * 5000}).encode()
    assert (
        error_of(await client.http.post("/v1/completions", content=body), 413)["code"] == "request_too_large"
    )

    async def chunks() -> Any:
        for at in range(0, len(body), 1000):
            yield body[at : at + 1000]

    error_of(await client.http.post("/v1/completions", content=chunks()), 413)
    bomb = gzip.compress(b" " * 1_000_000)
    error_of(
        await client.http.post("/v1/completions", content=bomb, headers={"content-encoding": "gzip"}), 413
    )


async def test_a_body_of_several_megabytes_is_served(launch: Launch) -> None:
    client = await launch(echo={"context_tokens": 2_000_000, "block_count": 125_000}, limits={})
    response = await client.chat("word " * 1_000_000, max_tokens=1)
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] > 1_000_000


async def test_unknown_paths_and_methods_answer_in_openais_shape(launch: Launch) -> None:
    client = await launch()
    error_of(await client.http.get("/nope"), 404)
    response = await client.http.get(CHAT)
    error_of(response, 405)
    assert response.headers["allow"] == "POST"


async def test_a_request_id_is_kept_or_made(launch: Launch) -> None:
    client = await launch()
    for path in ("/health", "/nope"):
        response = await client.http.get(path, headers={"x-request-id": "abc-1"})
        assert response.headers["x-request-id"] == "abc-1"
    made = (await client.http.get("/health", headers={"x-request-id": "x" * 500})).headers["x-request-id"]
    assert len(made) == 32
