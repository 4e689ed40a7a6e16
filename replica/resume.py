"""Resume: an answer that began on a replica that is gone goes on here, as if it had never stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from replica.answer import Choice
from replica.api import GenerationRequest, Resumed
from replica.scheduler import BlockNamer
from replica.sequence import Sequence
from replica.step import Output
from router.chain.chain import pack_tokens
from router.wire.errors import ApiError

MEMBER = "kvring_resume"
_LONGEST_ID = 256
_LARGEST_TOKEN = 2**32 - 1


def read_resumed(
    body: Mapping[str, Any], read: Callable[[Mapping[str, Any]], GenerationRequest]
) -> GenerationRequest:
    """Read the body of a stream as `read` does, with what was sent of it; ApiError 400 for any fault.

    `kvring_resume` holds `id` and `created` of its events, the `token_ids` that they brought, and whether the
    event with the finish reason was among them, `ended`.
    """
    given = body.get(MEMBER)
    if not isinstance(given, dict):
        raise _refusal("must be an object")
    request = read({name: value for name, value in body.items() if name != MEMBER})
    if not request.stream or len(request.prompts) != 1:
        raise _refusal("is for streams of one choice only")
    id, created, ended, tokens = (given.get(name) for name in ("id", "created", "ended", "token_ids"))
    if not (isinstance(id, str) and 0 < len(id) <= _LONGEST_ID):
        raise _refusal(f"wants an 'id' of 1 to {_LONGEST_ID} characters")
    if type(created) is not int or not 0 <= created < 2**53:
        raise _refusal("wants the second at which it was 'created'")
    if ended is not None and not isinstance(ended, bool):
        raise _refusal("takes true or false for 'ended'")
    if not isinstance(tokens, list) or not all(
        type(one) is int and 0 <= one <= _LARGEST_TOKEN for one in tokens
    ):
        raise _refusal("wants 'token_ids', a list of token ids")
    return replace(request, resumed=Resumed(id, created, tuple(tokens), bool(ended)))


def take_up(sequence: Sequence, resumed: Resumed, vocabulary: int, namer: BlockNamer, size: int) -> None:
    """Give a prompt's sequence the tokens of its answer that exist; blocks of `size` tokens are named on.

    ApiError 400 where they cannot be its answer.
    """
    tokens = resumed.token_ids
    if tokens and max(tokens) >= vocabulary:
        raise _refusal(f"has token ids from {vocabulary} on")
    if len(tokens) > sequence.max_tokens:
        raise _refusal("has more tokens than the answer may have")
    if any(token in sequence.end_ids for token in tokens[:-1]):
        raise _refusal("goes on after its end")
    sequence.tokens += tokens
    sequence.resumed_tokens = len(tokens)
    names, full = sequence.names, len(sequence.tokens) // size
    if len(names) < full:
        data = pack_tokens(sequence.tokens[len(names) * size : full * size])
        parent = names[-1] if names else namer.root
        names += namer.name_blocks(parent, data, sequence.keys, len(names))


def replay(choice: Choice, sequence: Sequence, resumed: Resumed) -> None:
    """Bring a choice where it was after the tokens that its sequence took up; their text was sent.

    It is finished where they end it. ApiError 400 where they do so too early, or not as was said.
    """
    tokens = sequence.tokens[sequence.prompt_tokens :]
    for place, token in enumerate(tokens, 1):
        if choice.finish:
            raise _refusal("goes on after its end")
        choice.feed(Output(0, token, sequence.finish_of(token) if place == len(tokens) else None))
    if resumed.ended and not choice.finish:
        raise _refusal("has not ended with these tokens")
    choice.take_ids()


def _refusal(why: str) -> ApiError:
    return ApiError(400, f"'{MEMBER}' {why}", param=MEMBER)
