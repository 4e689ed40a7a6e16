"""Bodies: nesting is counted right however the body looks, and brackets are counted to a limit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.wire.body import MAX_NESTING, brackets_in, parse_body
from router.wire.errors import ApiError


def _nested(levels: int, wide: int = 0) -> dict[str, Any]:
    """Return an object whose deepest value is so many levels down, among others that are not."""
    value: Any = "end"
    for level in range(levels - 1):
        value = {"a": 1, "b": value} if level % 2 else [value, 2]
    return {"first": [{}, []] * wide, "x": value}


@pytest.mark.parametrize("wide", [0, 3, 200])
def test_a_body_may_be_as_deep_as_the_limit_and_no_deeper(wide: int) -> None:
    raw = json.dumps(_nested(MAX_NESTING, wide)).encode()
    assert parse_body(raw) == json.loads(raw)
    for deeper in (MAX_NESTING + 1, MAX_NESTING + 2, 3 * MAX_NESTING):
        raw = json.dumps(_nested(deeper, wide)).encode()
        for brackets in (None, brackets_in(raw, 1000), brackets_in(raw, MAX_NESTING + 1)):
            with pytest.raises(ApiError, match="nested deeper"):
                parse_body(raw, brackets)


def test_brackets_in_texts_are_no_levels() -> None:
    raw = json.dumps({"x": "[{" * 500}).encode()
    assert parse_body(raw) == {"x": "[{" * 500}


def test_thousands_of_levels_are_refused_in_time() -> None:
    for levels in (1000, 100_000):
        with pytest.raises(ApiError):
            parse_body(b'{"x":' + b"[" * levels + b"]" * levels + b"}")


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet='[{]}a"', max_size=30), st.integers(1, 40))
def test_brackets_are_counted_to_a_limit(text: str, most: int) -> None:
    assert brackets_in(text.encode(), most) == min(most, text.count("[") + text.count("{"))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"NaN",
        b'{"x":NaN}',
        b'{"x":Infinity}',
        b'{"x":"\\ud83d"}',
        b'{"x":"\xff"}',
        b'{"x"',
    ],
)
def test_what_is_no_strict_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError):
        parse_body(raw)
