"""Strict reading of JSON answers: counts, shares and names, or a ValueError that says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import orjson

from router.engines.engine import Answer, Get

# Much more than any of these answers has.
LARGEST_BODY_BYTES = 4 << 20
_LONGEST_NAME = 256
_MOST_MODELS = 1000
_LARGEST_COUNT = 2**53
# What servers answer for what they do not have, or have turned off.
_NOT_THERE = frozenset({400, 404, 405, 410, 501})
_KEPT_FROM_US = frozenset({401, 403})


def is_there(answer: Answer, path: str) -> bool:
    """Return whether there is an answer; False where the engine has no such path, ValueError for a fault."""
    if answer.status in _NOT_THERE:
        return False
    if answer.status in _KEPT_FROM_US:
        raise ValueError(f"{path} answered {answer.status}: it wants a key that the router does not send")
    if answer.status != 200:
        raise ValueError(f"{path} answered {answer.status}")
    if len(answer.body) > LARGEST_BODY_BYTES:
        raise ValueError(f"{path} answered more than {LARGEST_BODY_BYTES} bytes")
    return True


async def ask_json(get: Get, path: str) -> Any:
    """Return the JSON that `path` answers, None where there is no such path; ValueError where it is none."""
    answer = await get(path)
    if not is_there(answer, path):
        return None
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{path} answered what is no JSON: {error}") from error


async def ask_object(get: Get, path: str) -> Mapping[str, Any] | None:
    """Return the JSON object that `path` answers, None where there is no such path."""
    body = await ask_json(get, path)
    if body is not None and not isinstance(body, dict):
        raise ValueError(f"{path} answered no JSON object")
    return body


async def ask_health(get: Get) -> bool:
    """Return what /health says; a server without one that answers at all is well."""
    answer = await get("/health")
    if answer.status >= 500 and answer.status != 503:
        raise ValueError(f"/health answered {answer.status}")
    return answer.status != 503


def count(value: object, what: str, least: int = 0) -> int:
    """Return a whole number of at least `least`."""
    number = quantity(value, what)
    if number != int(number) or number < least:
        raise ValueError(f"{what} is a whole number from {least} on, not {value!r:.100}")
    return int(number)


def quantity(value: object, what: str) -> float:
    """Return a number from zero to 2**53, above which floats count no more."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} is a number, not {value!r:.100}")
    # Compared first: an integer may be too large to be a float.
    if not (0 <= value <= _LARGEST_COUNT and isfinite(value)):
        raise ValueError(f"{what} is from 0 to 2**53, not {value!r:.100}")
    return float(value)


def share(value: float, what: str) -> float:
    """Return a share of 0 to 1; engines overshoot 1 by rounding."""
    if not 0 <= value <= 1.01:
        raise ValueError(f"{what} is a share of 0 to 1, not {value!r:.100}")
    return min(value, 1.0)


def maybe_count(value: object, least: int = 0) -> int | None:
    """Return a whole number of at least `least`, None for anything else."""
    try:
        return count(value, "", least)
    except ValueError:
        return None


def name(value: object) -> str:
    """Return a name of bounded length, empty for anything else."""
    return value if isinstance(value, str) and len(value) <= _LONGEST_NAME else ""


@dataclass(frozen=True, slots=True)
class Models:
    """What /v1/models tells: names served, longest context, LoRA adapters with their base, signature.

    Adapters come last, in whatever order they were told: the first name is that of a model.
    """

    names: tuple[str, ...] = ()
    context_tokens: int | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""


async def ask_models(get: Get) -> Models:
    """Ask for the models served; ValueError where the answer is no list of them."""
    body = await ask_object(get, "/v1/models")
    listed = body.get("data") if body is not None else None
    if not isinstance(listed, list):
        raise ValueError("/v1/models answered no list of models")
    names: dict[str, None] = {}
    lengths: list[int] = []
    adapters: dict[str, str] = {}
    cards = [card for card in listed[:_MOST_MODELS] if isinstance(card, dict) and name(card.get("id"))]
    for card in cards:
        names[card["id"]] = None
        aliases = card.get("aliases")
        for alias in aliases[:_MOST_MODELS] if isinstance(aliases, list) else ():
            if name(alias):
                names[alias] = None
        if base := name(card.get("parent")):
            adapters[card["id"]] = base
        elif (length := maybe_count(card.get("max_model_len"), 1)) is not None:
            lengths.append(length)
    owners = {name(card.get("owned_by")) for card in cards}
    owner = owners.pop() if len(owners) == 1 else ""
    ordered = sorted(names, key=adapters.__contains__)[:_MOST_MODELS]
    return Models(tuple(ordered), min(lengths, default=None), adapters, owner)
