"""Server-sent events are cut where they end, however the bytes come, and not a byte is lost."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from router.wire.sse import EventCutter

_PIECES = st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"data: x"]), max_size=30)
_ENDED = re.compile(rb"(\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n)\Z")


@settings(max_examples=200, deadline=None)
@given(_PIECES, st.lists(st.integers(1, 9), min_size=60, max_size=60))
def test_events_are_the_same_however_they_come(pieces: list[bytes], sizes: list[int]) -> None:
    data = b"".join(pieces)
    whole, cut = EventCutter(), EventCutter()
    expected = whole.feed(data)
    events, left = [], data
    for size in (*sizes, len(data) + 1):
        if left:
            events += cut.feed(left[:size])
        left = left[size:]
    assert b"".join(expected) + whole.rest() == data
    assert b"".join(events) + (rest := cut.rest()) == data
    assert all(_ENDED.search(event) for event in events)
    if b"\r" not in data:
        assert events == expected
        assert rest == data[len(b"".join(expected)) :]


def test_one_event_in_pieces_of_a_byte_is_one_event() -> None:
    cutter = EventCutter()
    for number in b"data: abc\r\n\r\n" * 2:
        assert cutter.feed(bytes([number])) in ([], [b"data: abc\r\n\r\n"])
    assert cutter.empty
    assert cutter.rest() == b""


def test_an_event_over_the_limit_comes_in_pieces() -> None:
    cutter = EventCutter(limit_bytes=10)
    assert cutter.feed(b"data: 12") == []
    assert cutter.feed(b"345") == [b"data: 12345"]
    assert cutter.feed(b"67\n\ndata: 8") == [b"67\n\n"]
    assert not cutter.empty
    assert cutter.rest() == b"data: 8"
