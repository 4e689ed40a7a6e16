"""The whole replica with the real model, over a socket."""

from __future__ import annotations

import httpx
import pytest

from replica.app import start
from replica.options import ReplicaOptions

QUESTION = {"role": "user", "content": "What is the capital of France?"}


@pytest.mark.model
async def test_a_chat_is_answered_ended_and_found_again() -> None:
    options = ReplicaOptions.load(flags={"port": 0, "torch": {"block_count": 128}, "linger_seconds": 0})
    replica = await start(options)
    try:
        async with httpx.AsyncClient(base_url=replica.url, trust_env=False, timeout=60) as http:
            body = {"model": options.model, "messages": [QUESTION], "temperature": 0, "max_tokens": 20}
            first = (await http.post("/v1/chat/completions", json=body)).json()
            (choice,) = first["choices"]
            assert choice["message"]["content"] == "The capital of France is Paris."
            assert choice["finish_reason"] == "stop"
            assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            again = {"role": "user", "content": "And of Italy?"}
            body["messages"] = [QUESTION, choice["message"], again]
            second = (await http.post("/v1/chat/completions", json=body)).json()
            assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32
            state = (await http.get("/state")).json()
            assert state["chain"]["kind"] == "tokens"
            assert state["context_tokens"] == 2048
            refused = await http.post(
                "/v1/completions", json={"model": options.model, "prompt": [49_152], "max_tokens": 1}
            )
            assert refused.status_code == 400
    finally:
        await replica.stop()


@pytest.mark.model
async def test_the_echo_runner_takes_the_models_tokens() -> None:
    echo = {"decode_seconds": 0, "prefill": {"base_seconds": 0}, "filler": "Hello to the world of echoes. "}
    options = ReplicaOptions.load(flags={"port": 0, "runner": "echo", "echo": echo})
    replica = await start(options)
    try:
        async with httpx.AsyncClient(base_url=replica.url, trust_env=False, timeout=60) as http:
            body = {"model": options.model, "messages": [QUESTION], "max_tokens": 30}
            answer = (await http.post("/v1/chat/completions", json=body)).json()
            text = answer["choices"][0]["message"]["content"]
            assert text.startswith("Hello to the world of echoes. Hello to the")
            assert answer["choices"][0]["finish_reason"] == "length"
    finally:
        await replica.stop()
