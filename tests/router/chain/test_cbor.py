"""The CBOR subset against the examples of RFC 8949, appendix A, and the bounds of its shortest forms."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.chain.cbor import CborItem, encode, encode_array_head, encode_tokens


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (100, "1864"),
        (1000, "1903e8"),
        (1000000, "1a000f4240"),
        (1000000000000, "1b000000e8d4a51000"),
        (18446744073709551615, "1bffffffffffffffff"),
        (-1, "20"),
        (-10, "29"),
        (-100, "3863"),
        (-1000, "3903e7"),
        (-18446744073709551616, "3bffffffffffffffff"),
        (None, "f6"),
        (b"", "40"),
        (b"\x01\x02\x03\x04", "4401020304"),
        ("", "60"),
        ("IETF", "6449455446"),
        ("\u00fc", "62c3bc"),
        ("\u6c34", "63e6b0b4"),
        ("\U00010151", "64f0908591"),
        ((), "80"),
        ((1, 2, 3), "83010203"),
        ((1, (2, 3), (4, 5)), "8301820203820405"),
        (tuple(range(1, 26)), "98190102030405060708090a0b0c0d0e0f101112131415161718181819"),
    ],
)
def test_the_examples_of_the_rfc(item: CborItem, expected: str) -> None:
    assert encode(item).hex() == expected


def test_long_strings_have_the_shortest_head() -> None:
    assert encode(b"x" * 255)[:2] == b"\x58\xff"
    assert encode("x" * 256)[:3] == b"\x79\x01\x00"
    assert encode(b"x" * 65536)[:5] == b"\x5a\x00\x01\x00\x00"


@pytest.mark.parametrize(
    ("item", "error"),
    [
        (2**64, OverflowError),
        (-(2**64) - 1, OverflowError),
        ("\ud800", UnicodeEncodeError),
        (True, TypeError),
        (1.5, TypeError),
        ((1, [2]), TypeError),
    ],
)
def test_what_it_does_not_carry_is_refused(item: CborItem, error: type[Exception]) -> None:
    with pytest.raises(error):
        encode(item)


EDGES = [edge + step for edge in (24, 2**8, 2**16, 2**32 - 1) for step in (-1, 0, 1) if edge + step < 2**32]


@given(st.lists(st.sampled_from(EDGES) | st.integers(0, 2**32 - 1), max_size=80))
@settings(max_examples=80, deadline=None)
def test_the_fast_path_for_tokens_writes_what_the_general_one_does(tokens: list[int]) -> None:
    assert encode_array_head(len(tokens)) + encode_tokens(tokens) == encode(tuple(tokens))
