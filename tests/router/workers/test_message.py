"""Messages over a stream: whole whatever the pieces are, and refused where they are none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.workers.message import MOST_BYTES, About, BrokenError, Inbox, Kind, Message, framed

_MESSAGES = st.builds(
    Message,
    kind=st.sampled_from(Kind),
    number=st.integers(0, 2**40),
    about=st.none() | st.sampled_from(About),
    body=st.binary(max_size=300),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(_MESSAGES, max_size=5), st.integers(1, 40))
def test_messages_come_through_in_any_pieces(messages: list[Message], size: int) -> None:
    raw = b"".join(framed(message) for message in messages)
    inbox = Inbox()
    came = [one for at in range(0, len(raw), size) for one in inbox.feed(raw[at : at + size])]
    assert came == messages


@pytest.mark.parametrize(
    "raw",
    [
        (MOST_BYTES + 1).to_bytes(4, "big"),
        (3).to_bytes(4, "big") + b"abc",
        (7).to_bytes(4, "big") + b"\x91\xa5other",
    ],
)
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(BrokenError):
        Inbox().feed(raw)
