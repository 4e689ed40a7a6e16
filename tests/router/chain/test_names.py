"""Names in one run of bytes: a sequence like any other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.chain.names import Names

_index = st.none() | st.integers(-12, 12)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 9).flatmap(
        lambda width: st.tuples(
            st.just(width), st.lists(st.binary(min_size=width, max_size=width), max_size=8)
        )
    ),
    _index,
    _index,
    st.none() | st.sampled_from([1, 2, -1, -3]),
)
def test_it_reads_as_the_list_of_names_does(
    given_names: tuple[int, list[bytes]], start: int | None, stop: int | None, step: int | None
) -> None:
    width, listed = given_names
    names = Names(b"".join(listed), width)
    assert list(names) == listed
    assert len(names) == len(listed)
    assert list(names[start:stop:step]) == listed[start:stop:step]
    assert names == listed
    assert names == Names(b"".join(listed), width)
    assert names != [*listed, b"x" * width]
    for index in range(-len(listed), len(listed)):
        assert names[index] == listed[index]
    for index in (len(listed), -len(listed) - 1):
        with pytest.raises(IndexError):
            names[index]


def test_names_of_other_widths_are_others() -> None:
    assert Names(b"abcd", 2) != Names(b"abcd", 4)
