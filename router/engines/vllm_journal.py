"""A journal of one stream of vLLM: another completes prompt and answer so far, both given as token ids."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import orjson

from router.engines.journal import Journal
from router.wire.sse import DONE, encode_event, event_data

_PROMPT_IDS = b',"prompt_token_ids":['
# Where the text of a choice begins. Quotes within texts are escaped, so that this is a member's name.
_TEXT = {"/v1/chat/completions": b'"content":"', "/v1/completions": b'"text":"'}
# What a parser made of the tokens: its state is not to be had.
_PARSED = re.compile(rb'"(?:reasoning|reasoning_content)":"[^"]|"tool_calls":\[\{')
_DEFAULT_COMPLETION_TOKENS = 16

# Fields that mean the same for the rest of an answer as for the whole.
_KEPT = frozenset(
    (
        "model",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop_token_ids",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "logit_bias",
        "allowed_token_ids",
        "priority",
        "cache_salt",
        "session_id",
        "user",
    )
)
# Fields that made the prompt, which is known by its tokens now, or that are said anew, or say nothing of it.
_SPENT = frozenset(
    (
        "messages",
        "prompt",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
        "documents",
        "reasoning_effort",
        "include_reasoning",
        "truncate_prompt_tokens",
        "truncation_side",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "request_id",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "include_stop_str_in_output",
        "length_penalty",
        "return_token_ids",
    )
)
# Fields that look back on the answer so far, with values that ask for nothing, and those that a resumable
# request has with such values alone.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "stop": ([], ""),
    "bad_words": ([],),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}


class VllmJournal(Journal):
    """See Journal. Its text may lag behind its tokens: an answer goes on behind the last that showed text."""

    engine = "vllm"
    asks = b'"return_token_ids":true,'

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._text = _TEXT[path]
        self._prompt = b""
        # How far `_ids` goes for the text that the client has had.
        self._shown = 0
        # Tokens of the answer that are prompt to who goes on now; None while nobody had to.
        self._taken_up: int | None = None

    def take(self, event: bytes) -> bytes:
        """See Journal."""
        if self._taken_up is not None or not self._prompt:
            event = self._cut_prompt(event)
        event = super().take(event)
        at = event.find(self._text)
        if (at >= 0 and not event.startswith(b'"', at + len(self._text))) or self._ended:
            self._shown = len(self._ids)
        if (b'"reasoning' in event or b'"tool_calls' in event) and _PARSED.search(event):
            self._lost = True
        return event if self._taken_up is None else self._mended(event, self._taken_up)

    def closing(self) -> list[bytes] | None:
        """See Journal."""
        if self._ended and not self._used and self._prompt and not self._lost:
            # As told by who went on, where somebody did: `take` counts what was taken up.
            told = {"completion_tokens": self.tokens - (self._taken_up or 0)}
            usage = self._usage(told) if self._taken_up is None else told
            chunk = {**self._head(), "choices": [], "usage": usage}
            return [encode_event(orjson.dumps(chunk)), DONE]
        return super().closing()

    def _resume(
        self, raw: bytes, inserted: bytes, context_tokens: int | None
    ) -> tuple[str, list[bytes]] | None:
        # What follows the text shown is computed once more.
        del self._ids[self._shown :]
        sent = self.tokens
        body = json.loads(raw)
        fields = _fields(body)
        left = self._left(body, context_tokens)
        if self._ended or not self._prompt or fields is None or left is None or left < 1:
            return None
        options = body.get("stream_options")
        fields |= {
            "max_tokens": left,
            "min_tokens": max(0, (body.get("min_tokens") or 0) - sent),
            "stream": True,
            "stream_options": {**(options if isinstance(options, dict) else {}), "include_usage": True},
            "return_token_ids": True,
        }
        self._taken_up = sent
        self._text = _TEXT["/v1/completions"]
        known = json.dumps(fields, ensure_ascii=False).encode()
        prompt = self._prompt + (b"," + bytes(self._ids[:-1]) if sent else b"")
        return "/v1/completions", [known[:-1], b',"prompt":[', prompt, b"]}"]

    def _left(self, body: Mapping[str, Any], context_tokens: int | None) -> int | None:
        """Return how many tokens the answer may still have, None where that is not known."""
        asked = body.get("max_completion_tokens") or body.get("max_tokens")
        if asked is None and self._path == "/v1/completions":
            asked = _DEFAULT_COMPLETION_TOKENS
        bounds = [asked] if isinstance(asked, int) else []
        if context_tokens is not None:
            bounds.append(context_tokens - self._prompt_tokens)
        return min(bounds) - self.tokens if bounds else None

    @property
    def _prompt_tokens(self) -> int:
        return self._prompt.count(b",") + 1

    def _cut_prompt(self, event: bytes) -> bytes:
        at = event.find(_PROMPT_IDS)
        end = event.find(b"]", at)
        if at < 0 or end < 0:
            return event
        if not self._prompt:
            self._prompt = event[at + len(_PROMPT_IDS) : end]
        return event[:at] + event[end + 1 :]

    def _mended(self, event: bytes, taken_up: int) -> bytes:
        """Return an event of who goes on as one of the answer that the client knows."""
        data = event_data(event)
        if data is None or data == b"[DONE]":
            return event
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            return event
        if not isinstance(chunk, dict) or not isinstance(chunk.get("choices"), list):
            return event
        head = self._head()
        chunk |= {name: head[name] for name in ("id", "object", "created", "model") if name in head}
        if self._path == "/v1/chat/completions":
            chunk["choices"] = [_delta(choice) for choice in chunk["choices"]]
        if isinstance(chunk.get("usage"), dict):
            chunk["usage"] = self._usage(chunk["usage"])
        return encode_event(orjson.dumps(chunk))

    def _usage(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Return the usage of the whole answer, by what was `told` of the part that was taken up last."""
        prompt = self._prompt_tokens
        answer = (self._taken_up or 0) + int(told["completion_tokens"])
        usage = {
            **told,
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        }
        details = told.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            # It may have had a part of the answer in its cache, too.
            cached = min(details["cached_tokens"], prompt)
            usage["prompt_tokens_details"] = {**details, "cached_tokens": cached}
        return usage


def _fields(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a request that go on holding; None where one looks back, or is not known."""
    kept = {}
    for name, value in body.items():
        if value is None or name in _SPENT:
            continue
        if name in _KEPT:
            kept[name] = value
        elif not any(value == one for one in _NEUTRAL.get(name, ())):
            return None
    # The draws of a seed start anew with each request.
    seeded = kept.get("seed") is not None and kept.get("temperature") != 0
    return None if seeded or not _is_text(body.get("messages")) else kept


def _is_text(messages: object) -> bool:
    """Say whether a chat is of text alone: images are no tokens."""
    contents = [one.get("content") for one in messages or [] if isinstance(one, dict)]  # type: ignore[attr-defined]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return all(
        isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text") for part in parts
    )


def _delta(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the choice of a text completion as one of a chat."""
    text = choice.pop("text", "")
    return {"index": choice.pop("index", 0), "delta": {"content": text}, **choice}
