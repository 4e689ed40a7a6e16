"""What a vLLM answers with return_token_ids, event for event as its sources say, of a model of bytes."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson

from router.wire.sse import DONE, encode_event

SAID = 'Ein Bär 😀 schläft: 漢字, then "quotes", {"content":"x"} and [1,2] end. '.encode()
END = 256


@dataclass
class ScriptedVllm:
    """Token i of a context is byte i of what it says, whatever came before; `end_at` of them end an answer.

    `context_tokens` is its longest sequence, and `burst` how many tokens come in an event. One that is
    `primed` turns tokens to text as what follows the prompt's, as fast tokenizers do.
    """

    context_tokens: int = 400
    end_at: int = 10_000
    burst: int = 1
    primed: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    _ids: Iterator[int] = field(default_factory=count)

    def answer(self, path: str, raw: bytes) -> list[bytes]:
        """Return the events of a streamed request."""
        body = orjson.loads(raw)
        self.asked.append(body)
        chat = path == "/v1/chat/completions"
        prompt = list(repr(body["messages"]).encode()) if chat else body["prompt"]
        prompt = list(prompt.encode()) if isinstance(prompt, str) else prompt
        room = self.context_tokens - len(prompt)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or (room if chat else 16)
        assert limit <= room
        return list(self._events(body, chat, prompt, limit, next(self._ids)))

    def _events(
        self, body: dict[str, Any], chat: bool, prompt: list[int], limit: int, number: int
    ) -> Iterator[bytes]:
        kind, prefix = ("chat.completion.chunk", "chatcmpl") if chat else ("text_completion", "cmpl")
        head = {"id": f"{prefix}-{number}", "object": kind, "created": 1000 + number}
        head["model"] = body["model"]
        options = body.get("stream_options") or {}
        told = bool(body.get("return_token_ids"))
        made = 0

        def event(choice: dict[str, Any], **more: Any) -> bytes:
            if options.get("continuous_usage_stats"):
                more["usage"] = _usage(len(prompt), made)
            return encode_event(orjson.dumps({**head, "choices": [choice], **more}))

        if chat:
            opening = {"index": 0, "delta": {"role": "assistant", "content": ""}}
            opening |= {"logprobs": None, "finish_reason": None}
            yield event(opening, prompt_token_ids=prompt if told else None)
        decoder = getincrementaldecoder("utf-8")("replace")
        if self.primed:
            decoder.decode(bytes(prompt))
        finish, first = None, True
        while finish is None:
            tokens: list[int] = []
            while finish is None and len(tokens) < self.burst:
                place = len(prompt) + made
                tokens.append(END if place >= self.end_at else SAID[place % len(SAID)])
                made += 1
                finish = "stop" if tokens[-1] == END else "length" if made >= limit else None
            text = decoder.decode(bytes(token for token in tokens if token != END), finish is not None)
            choice: dict[str, Any] = {"index": 0}
            choice |= {"delta": {"content": text}} if chat else {"text": text}
            choice |= {"logprobs": None, "finish_reason": finish}
            if finish or not chat:
                choice["stop_reason"] = None
            choice["token_ids"] = tokens if told else None
            if not chat:
                choice["prompt_token_ids"] = prompt if told and first else None
            first = False
            yield event(choice)
        if options.get("include_usage"):
            usage = _usage(len(prompt), made) | {"prompt_tokens_details": {"cached_tokens": len(prompt) - 1}}
            yield encode_event(orjson.dumps({**head, "choices": [], "usage": usage}))
        yield DONE


def _usage(prompt: int, answer: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + answer, "completion_tokens": answer}
