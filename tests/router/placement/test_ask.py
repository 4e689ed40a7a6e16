"""The ask: what is left of it once its text is let go."""

from __future__ import annotations

import pytest

from router.chain.chain import Chain
from router.placement.ask import Ask


def _ask(blocks: int, data: bytes) -> Ask:
    names = tuple(bytes([number]) * 16 for number in range(1, blocks + 1))
    return Ask("m", 100, b"spread", Chain("id", names, data, 64, 16, 100), b"session")


def _keys(ask: Ask) -> list[bytes]:
    return [ask.key_at(depth) for depth in (0, 1, 50, 200)]


def test_without_its_text_an_ask_has_the_same_keys() -> None:
    ask = _ask(100, b"x" * 6400)
    before, marks = _keys(ask), ask.marks
    ask.forget_text()
    assert ask.chain is not None
    assert ask.chain.data == b""
    assert _keys(ask) == before
    assert ask.marks is marks


@pytest.mark.parametrize(("blocks", "data"), [(2, b"x" * 128), (0, b"x" * 6400)])
def test_one_that_is_short_or_has_no_other_key_keeps_its_text(blocks: int, data: bytes) -> None:
    ask = _ask(blocks, data)
    before = _keys(ask)
    ask.forget_text()
    assert ask.chain is not None
    assert ask.chain.data == data
    assert _keys(ask) == before
