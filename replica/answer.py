"""OpenAI's answers: the text of each choice as it grows, and the JSON around it."""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Any
from uuid import uuid4

import orjson

from replica.api import GenerationRequest
from replica.detokenizer import Detokenizer, StopScanner
from replica.sequence import Finish
from replica.step import Output
from router.wire.sse import encode_event


class Choice:
    """One choice of an answer. `finish` is set when it is complete; `tokens` counts those computed for it."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str], end_ids: frozenset[int]) -> None:
        self.finish: Finish | None = None
        self.cached_tokens = 0
        self.evicted_tokens: int | None = None
        self.prefill_seconds = 0.0
        self.tokens = 0
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops)
        self._end_ids = end_ids

    def feed(self, output: Output) -> str:
        """Take what a step brought; return the text that has become certain. Nothing follows a finish."""
        if self.finish:
            return ""
        if output.token is None:
            self.finish = output.finish
            return ""
        self.tokens += 1
        self.cached_tokens = output.cached_tokens
        self.evicted_tokens = output.evicted_tokens
        self.prefill_seconds = output.prefill_seconds
        text = self._scanner.feed(self._text(output))
        if self._scanner.stopped:
            self.finish = Finish.STOP
        elif output.finish:
            self.finish = output.finish
            text += self._scanner.rest()
        return text

    def _text(self, output: Output) -> str:
        assert output.token is not None
        # The token that ends an answer is no part of its text.
        text = "" if output.token in self._end_ids else self._detokenizer.feed(output.token)
        return text + self._detokenizer.rest() if output.finish else text


class Answer:
    """The JSON of one answer, whole or in chunks, for chat and text completions."""

    def __init__(self, request: GenerationRequest, prompt_tokens: int, choices: Sequence[Choice]) -> None:
        self._chat = request.chat
        self._include_usage = request.include_usage
        self._prompt_tokens = prompt_tokens
        self._choices = choices
        self._head = {
            "id": f"{'chatcmpl' if request.chat else 'cmpl'}-{uuid4().hex}",
            "object": "chat.completion" if request.chat else "text_completion",
            "created": int(time()),
            "model": request.model,
        }

    def whole(self, texts: Sequence[str]) -> bytes:
        """Return the answer of a request that does not stream."""
        return orjson.dumps(
            {
                **self._head,
                "choices": [
                    self._choice(index, text, choice.finish, "message")
                    for index, (text, choice) in enumerate(zip(texts, self._choices, strict=True))
                ],
                "usage": self._usage(),
                "timings": self._timings(),
            }
        )

    def opening(self, index: int) -> bytes:
        """Return the event that opens a chat's choice; nothing for text completions."""
        if not self._chat:
            return b""
        return self._event([self._delta(index, {"role": "assistant", "content": ""}, None)])

    def piece(self, index: int, text: str) -> bytes:
        """Return the event with a piece of text."""
        if self._chat:
            return self._event([self._delta(index, {"content": text}, None)])
        return self._event([self._choice(index, text, None, "text")])

    def end(self, index: int) -> bytes:
        """Return the event that says why a choice ended."""
        finish = self._choices[index].finish
        if self._chat:
            return self._event([self._delta(index, {}, finish)])
        return self._event([self._choice(index, "", finish, "text")])

    def usage_event(self) -> bytes:
        """Return the event with the usage, if the client asked for it."""
        return self._event([], self._usage()) if self._include_usage else b""

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        chunk: dict[str, Any] = {**self._head, "choices": choices}
        if self._chat:
            chunk["object"] = "chat.completion.chunk"
        if self._include_usage:
            chunk["usage"] = usage
        if usage is not None:
            chunk["timings"] = self._timings()
        return encode_event(orjson.dumps(chunk))

    def _delta(self, index: int, delta: dict[str, str], finish: Finish | None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _choice(self, index: int, text: str, finish: Finish | None, kind: str) -> dict[str, Any]:
        if self._chat:
            message = {"role": "assistant", "content": text, "refusal": None}
            return {"index": index, kind: message, "logprobs": None, "finish_reason": finish}
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}

    def _timings(self) -> dict[str, Any]:
        """Return what the prompt took, without the wait for it, in the words of llama.cpp's server."""
        cached = sum(choice.cached_tokens for choice in self._choices)
        seconds = sum(choice.prefill_seconds for choice in self._choices)
        return {"cache_n": cached, "prompt_n": self._prompt_tokens - cached, "prompt_ms": 1000 * seconds}

    def _usage(self) -> dict[str, Any]:
        answer = sum(choice.tokens for choice in self._choices)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": answer,
            "total_tokens": self._prompt_tokens + answer,
            "prompt_tokens_details": self._prompt_details(),
        }

    def _prompt_details(self) -> dict[str, int]:
        cached = sum(choice.cached_tokens for choice in self._choices)
        # Beside OpenAI's own field: what was cached here once. Left out where nothing is ever kept.
        evicted = [one.evicted_tokens for one in self._choices if one.evicted_tokens is not None]
        return {"cached_tokens": cached} | ({"evicted_tokens": sum(evicted)} if evicted else {})
