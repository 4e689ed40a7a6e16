"""Continuation: which streams another replica may go on with, exactly, once theirs has died."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router.engines.journal import Journal
from router.engines.vllm_journal import VllmJournal

_PATHS = frozenset(("/v1/chat/completions", "/v1/completions"))
_JOURNALS: Mapping[str, type[Journal]] = {one.engine: one for one in (Journal, VllmJournal)}

# Fields under which an answer is more than one text that grows by tokens, with the values that ask for no
# such thing. None always asks for nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "modalities": (["text"],),
    "audio": (),
    "prompt_embeds": (),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
}
# What the router says itself: a client that does so, too, whatever it says, is left alone.
_OWN = frozenset(("return_token_ids", "kvring_resume"))
_TELLING = _OWN.union(_NEUTRAL)


def resumable(path: str, body: Mapping[str, Any]) -> bool:
    """Return whether a request asks for one text, streamed, whose tokens say all of it."""
    if path not in _PATHS or body.get("stream") is not True:
        return False
    if not _TELLING.isdisjoint(body) and not all(map(_is_neutral, body.items())):
        return False
    prompt = body.get("prompt")
    return not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int)


def _is_neutral(field: tuple[str, object]) -> bool:
    name, value = field
    if name in _OWN:
        return False
    if value is None or name not in _NEUTRAL:
        return True
    # Types are compared too: 0 asks for logprobs, false does not.
    return any(type(value) is type(one) and value == one for one in _NEUTRAL[name])


def journal_of(engine: str, path: str) -> Journal | None:
    """Return a journal for a stream of a replica that runs `engine`, None where no other goes on with it."""
    kind = _JOURNALS.get(engine)
    return kind(path) if kind is not None else None
