"""OpenAI's answers: the text of each choice as it grows, and the JSON around it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from time import time
from typing import Any
from uuid import uuid4

import orjson

from replica.api import GenerationRequest, TokenIds
from replica.detokenizer import Detokenizer, StopScanner
from replica.sequence import Finish, Sequence
from replica.step import Output
from router.wire.sse import encode_event


class Choice:
    """One choice of an answer. `finish` is set when it is complete; `tokens` counts those computed for it."""

    def __init__(self, detokenizer: Detokenizer, stops: Ordered[str], end_ids: frozenset[int]) -> None:
        self.finish: Finish | None = None
        self.cached_tokens = 0
        self.evicted_tokens: int | None = None
        self.prefill_seconds = 0.0
        self.tokens = 0
        self._ids: list[int] = []
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
        self._ids.append(output.token)
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

    def take_ids(self) -> list[int]:
        """Return the tokens that came since the last call, those whose text is held back included."""
        ids, self._ids = self._ids, []
        return ids

    def _text(self, output: Output) -> str:
        assert output.token is not None
        # The token that ends an answer is no part of its text.
        text = "" if output.token in self._end_ids else self._detokenizer.feed(output.token)
        return text + self._detokenizer.rest() if output.finish else text


class Answer:
    """The JSON of one answer, whole or in chunks, for chat and text completions.

    Token ids stand where vLLM has them. Of a stream each event tells the tokens since the one before, so that
    those told are always just the ones that make the text sent.
    """

    def __init__(
        self, request: GenerationRequest, sequences: Ordered[Sequence], choices: Ordered[Choice]
    ) -> None:
        self._chat = request.chat
        self._include_usage = request.include_usage
        self._ids = request.token_ids
        self._prompt_tokens = sum(sequence.prompt_tokens for sequence in sequences)
        self._choices = choices
        resumed = request.resumed
        # What came first had them, wherever it was.
        wanted = request.token_ids is TokenIds.ALL and resumed is None
        self._prompt_ids = {
            index: sequence.tokens[: sequence.prompt_tokens]
            for index, sequence in enumerate(sequences if wanted else ())
        }
        self._head = {
            "id": resumed.id if resumed else f"{'chatcmpl' if request.chat else 'cmpl'}-{uuid4().hex}",
            "object": "chat.completion" if request.chat else "text_completion",
            "created": resumed.created if resumed else int(time()),
            "model": request.model,
        }

    def whole(self, texts: Ordered[str]) -> bytes:
        """Return the answer of a request that does not stream."""
        return orjson.dumps(
            {
                **self._head,
                **(self._prompt_part(0) if self._chat else {}),
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
        delta = {"index": index, "delta": {"role": "assistant", "content": ""}}
        choice = {**delta, "logprobs": None, "finish_reason": None}
        return self._event([choice], more=self._prompt_part(index))

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

    def _event(
        self,
        choices: list[dict[str, Any]],
        usage: dict[str, Any] | None = None,
        more: Mapping[str, list[int]] | None = None,
    ) -> bytes:
        chunk: dict[str, Any] = {**self._head, "choices": choices, **(more or {})}
        if self._chat:
            chunk["object"] = "chat.completion.chunk"
        if self._include_usage:
            chunk["usage"] = usage
        if usage is not None:
            chunk["timings"] = self._timings()
        return encode_event(orjson.dumps(chunk))

    def _delta(self, index: int, delta: dict[str, str], finish: Finish | None) -> dict[str, Any]:
        return {
            "index": index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish,
            **self._answer_part(index),
        }

    def _choice(self, index: int, text: str, finish: Finish | None, kind: str) -> dict[str, Any]:
        said: dict[str, Any] = {"text": text}
        if self._chat:
            said = {kind: {"role": "assistant", "content": text, "refusal": None}}
        return {
            "index": index,
            **said,
            "logprobs": None,
            "finish_reason": finish,
            **self._answer_part(index),
            **({} if self._chat else self._prompt_part(index)),
        }

    def _answer_part(self, index: int) -> dict[str, list[int]]:
        return {} if self._ids is TokenIds.NONE else {"token_ids": self._choices[index].take_ids()}

    def _prompt_part(self, index: int) -> dict[str, list[int]]:
        # Told once, with whatever comes first.
        tokens = self._prompt_ids.pop(index, None)
        return {} if tokens is None else {"prompt_token_ids": tokens}

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
