"""Mangled answers: whatever bytes an engine sends, adapters tell sense or raise ValueError."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.config import EventOptions
from router.engines.detect import detect, engine_of
from router.engines.engine import Answer, Get
from tests.router.engines.scripted_engines import ENGINES, PAGE

T = TypeVar("T")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["tcp://*:5557", "*", "m", "vllm"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
ODD = [b"NaN", b"-1", b"1e999", b"+Inf", b"9" * 40, b"\n"]
STATUS = st.sampled_from([200] * 8 + [204, 302, 404, 500, 501, 503])


def body_of(told: Any) -> tuple[str, bytes]:
    if isinstance(told, str):
        return PAGE, told.encode()
    return "application/json", json.dumps(told).encode()


@st.composite
def mangled(draw: st.DrawFn, told: Any) -> Answer:
    """The answer, with a piece of it replaced by bytes, a value of its JSON by another, or a status."""
    kind, body = body_of(told)
    how = draw(st.sampled_from(["bytes", "value", "status", "whole"]))
    if how == "value" and isinstance(told, dict | list) and told:
        return Answer(200, kind, json.dumps(swapped(draw, told)).encode())
    if how == "whole":
        return Answer(200, kind, draw(st.binary(max_size=40)))
    if how == "status":
        return Answer(draw(STATUS), kind, body)
    start = draw(st.integers(0, len(body)))
    end = draw(st.integers(start, min(len(body), start + 30)))
    piece = draw(st.binary(max_size=8) | st.sampled_from(ODD))
    return Answer(200, kind, body[:start] + piece + body[end:])


def swapped(draw: st.DrawFn, told: Any) -> Any:
    """`told` with one value somewhere in it replaced."""
    keys = list(told) if isinstance(told, dict) else list(range(len(told)))
    at = draw(st.sampled_from(keys))
    deeper = isinstance(told[at], dict | list) and told[at] and draw(st.booleans())
    copy = dict(told) if isinstance(told, dict) else list(told)
    copy[at] = swapped(draw, told[at]) if deeper else draw(JSON)
    return copy


def getter(answers: dict[str, Answer]) -> Get:
    async def get(path: str) -> Answer:
        return answers.get(path, Answer(404, "application/json", b"{}"))

    return get


async def unless_refused(asked: Awaitable[T]) -> T | None:
    try:
        return await asked
    except ValueError:
        return None


@pytest.mark.parametrize("kind", ENGINES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
async def test_a_mangled_answer_tells_sense_or_is_refused(kind: str, data: st.DataObject) -> None:
    told = {path: answer for path, answer in ENGINES[kind].items() if not isinstance(answer, int)}
    answers = {path: Answer(200, *body_of(answer)) for path, answer in told.items()}
    path = data.draw(st.sampled_from(sorted(told)))
    answers[path] = data.draw(mangled(told[path]))
    get = getter(answers)
    assert (await detect(get)).kind in ENGINES
    engine = engine_of(kind)
    facts = await unless_refused(engine.facts(get, "h", EventOptions(source="replica")))
    if facts is not None:
        assert facts.block_tokens is None or facts.block_tokens >= 1
        assert facts.block_count is None or facts.block_count >= 1
        assert facts.context_tokens is None or facts.context_tokens >= 1
        assert all(isinstance(name, str) and name for name in facts.models)
        assert all(source.endpoint.startswith("tcp://") for source in facts.events)
    load = await unless_refused(engine.load(get))
    if load is not None:
        assert load.running >= 0
        assert load.waiting >= 0
        assert 0 <= load.kv_usage <= 1
        assert load.waiting_tokens is None or load.waiting_tokens >= 0
