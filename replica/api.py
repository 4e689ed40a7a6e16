"""OpenAI's requests, read strictly: what is not built but would change the answer is refused, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from secrets import randbits
from typing import Any

from replica.batch import Sampling
from router.chain.prompt import CanonicalPrompt, PromptError, chat_prompt, completion_prompts
from router.wire.errors import ApiError

_MAX_STOPS = 16
_MAX_STOP_CHARACTERS = 1024
_COMPLETION_TOKENS = 16  # OpenAI's default where a completion request sets none

# Fields that would change the answer, with the values that ask for nothing. None always does.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "length_penalty": (1, 1.0),
    "logit_bias": ({},),
    "top_k": (0, -1),
    "min_p": (0, 0.0),
    "min_tokens": (0,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "truncate_prompt_tokens": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "kv_transfer_params": (),
}
_NEUTRAL_CHAT: Mapping[str, tuple[object, ...]] = {
    **_NEUTRAL,
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tool_choice": ("auto", "none"),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "documents": ([],),
    "chat_template": (),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "echo": (False,),
}
_NEUTRAL_COMPLETION: Mapping[str, tuple[object, ...]] = {
    **_NEUTRAL,
    "logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
}


class TokenIds(Enum):
    """Which token ids an answer tells: none, those of the answer, or those of the prompt too."""

    NONE = "none"
    ANSWER = "answer"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Resumed:
    """What was sent of an answer that began elsewhere: the `id` and `created` of its events, the tokens that
    they brought, and whether the reason why it `ended` was among them."""

    id: str
    created: int
    token_ids: tuple[int, ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a body asks for. `max_tokens` is None where the replica's own default holds."""

    chat: bool
    model: str
    prompts: tuple[CanonicalPrompt, ...]
    sampling: Sampling
    max_tokens: int | None
    stops: tuple[str, ...]
    end_ids: frozenset[int]
    ignore_end: bool
    stream: bool
    include_usage: bool
    token_ids: TokenIds = TokenIds.NONE
    resumed: Resumed | None = None


def read_chat(body: Mapping[str, Any]) -> GenerationRequest:
    """Read the body of /v1/chat/completions; ApiError 400 that names the field at fault."""
    try:
        prompt = chat_prompt(body)
    except PromptError as error:
        raise ApiError(400, str(error), param=error.field) from error
    _refuse_unbuilt(body, _NEUTRAL_CHAT)
    if not prompt.renderable:
        raise ApiError(
            400, "this model reads text only: messages hold a part of another kind", param="messages"
        )
    tokens = _integer(body, "max_completion_tokens", 1) or _integer(body, "max_tokens", 1)
    return _request(body, True, (prompt,), tokens)


def read_completion(body: Mapping[str, Any], max_prompts: int) -> GenerationRequest:
    """Read the body of /v1/completions; ApiError 400 that names the field at fault."""
    given = body.get("prompt")
    if isinstance(given, list) and given and not isinstance(given[0], int) and len(given) > max_prompts:
        raise ApiError(400, f"at most {max_prompts} prompts in one request", param="prompt")
    try:
        prompts = completion_prompts(body)
    except PromptError as error:
        raise ApiError(400, str(error), param=error.field) from error
    _refuse_unbuilt(body, _NEUTRAL_COMPLETION)
    return _request(body, False, tuple(prompts), _integer(body, "max_tokens", 1) or _COMPLETION_TOKENS)


def _request(
    body: Mapping[str, Any], chat: bool, prompts: tuple[CanonicalPrompt, ...], max_tokens: int | None
) -> GenerationRequest:
    stream = _flag(body, "stream")
    seed = _integer(body, "seed", -(2**63), 2**64 - 1)
    return GenerationRequest(
        chat=chat,
        model=prompts[0].keys.model,
        prompts=prompts,
        sampling=Sampling(
            temperature=_number(body, "temperature", 1.0, 0.0, 2.0),
            top_p=_top_p(body),
            seed=randbits(63) if seed is None else seed % 2**63,
        ),
        max_tokens=max_tokens,
        stops=_stops(body),
        end_ids=_end_ids(body),
        ignore_end=_flag(body, "ignore_eos"),
        stream=stream,
        include_usage=_include_usage(body, stream),
        token_ids=_token_ids(body),
    )


def _refuse_unbuilt(body: Mapping[str, Any], neutral: Mapping[str, tuple[object, ...]]) -> None:
    for name in body.keys() & neutral.keys():
        value = body[name]
        # Types are compared too: 0 asks for logprobs, false does not.
        if value is not None and not any(type(value) is type(one) and value == one for one in neutral[name]):
            raise ApiError(
                400, f"'{name}' is not supported with this value", code="unsupported_parameter", param=name
            )


def _include_usage(body: Mapping[str, Any], stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise ApiError(400, "'stream_options' must be an object", param="stream_options")
    if not stream:
        raise ApiError(400, "'stream_options' is only allowed with 'stream'", param="stream_options")
    return _flag(options, "include_usage")


def _token_ids(body: Mapping[str, Any]) -> TokenIds:
    wanted = body.get("return_token_ids")
    if wanted is None or wanted is False:
        return TokenIds.NONE
    if wanted is True:
        return TokenIds.ALL
    # Our own word: whoever sent a long prompt need not be told it again.
    if wanted == "answer":
        return TokenIds.ANSWER
    raise ApiError(400, "'return_token_ids' must be true, false or \"answer\"", param="return_token_ids")


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
        raise ApiError(400, "'stop' must be text or a list of texts, none of them empty", param="stop")
    if len(stops) > _MAX_STOPS or any(len(one) > _MAX_STOP_CHARACTERS for one in stops):
        raise ApiError(
            400, f"'stop' takes {_MAX_STOPS} texts of {_MAX_STOP_CHARACTERS} characters", param="stop"
        )
    return tuple(stops)


def _end_ids(body: Mapping[str, Any]) -> frozenset[int]:
    ids = body.get("stop_token_ids") or []
    if (
        not isinstance(ids, list)
        or len(ids) > _MAX_STOPS
        or not all(type(one) is int and 0 <= one < 2**32 for one in ids)
    ):
        raise ApiError(
            400, f"'stop_token_ids' must be at most {_MAX_STOPS} token ids", param="stop_token_ids"
        )
    return frozenset(ids)


def _top_p(body: Mapping[str, Any]) -> float:
    top_p = _number(body, "top_p", 1.0, 0.0, 1.0)
    if top_p == 0:
        raise ApiError(400, "'top_p' must be above 0", param="top_p")
    return top_p


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"'{name}' must be true or false", param=name)
    return bool(value)


def _number(body: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ApiError(400, f"'{name}' must be a number", param=name)
    if not (isfinite(value) and low <= value <= high):
        raise ApiError(400, f"'{name}' must be from {low:g} to {high:g}", param=name)
    return float(value)


def _integer(body: Mapping[str, Any], name: str, low: int, high: int = 2**31 - 1) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiError(400, f"'{name}' must be an integer", param=name)
    if not low <= value <= high:
        raise ApiError(400, f"'{name}' must be from {low} to {high}", param=name)
    return value
